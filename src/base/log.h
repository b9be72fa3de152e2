// What Octet says to its operator: one line each on stderr, through spdlog. stdout is for results.
//
//   log::info("loaded {} tensors, {} bytes", count, bytes);
#pragma once

#include <fmt/format.h>

#include <string_view>
#include <utility>

namespace octet::log {

enum class Level { debug, info, warning, error, off };

// Messages below `level` are dropped; info at first. Set once, by main, from its flag.
void set_level(Level level);
bool enabled(Level level);

// "debug", "info", "warning", "error" or "off"; Error otherwise.
Level parse_level(std::string_view text);

// Writes one finished message. Thread-safe.
void write(Level level, std::string_view message);

template <class... Args>
void at(Level level, fmt::format_string<Args...> format, Args&&... args) {
  if (enabled(level)) write(level, fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
void debug(fmt::format_string<Args...> format, Args&&... args) {
  at(Level::debug, format, std::forward<Args>(args)...);
}
template <class... Args>
void info(fmt::format_string<Args...> format, Args&&... args) {
  at(Level::info, format, std::forward<Args>(args)...);
}
template <class... Args>
void warning(fmt::format_string<Args...> format, Args&&... args) {
  at(Level::warning, format, std::forward<Args>(args)...);
}
template <class... Args>
void error(fmt::format_string<Args...> format, Args&&... args) {
  at(Level::error, format, std::forward<Args>(args)...);
}

}  // namespace octet::log
