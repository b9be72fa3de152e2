#include "base/log.h"

#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <memory>
#include <string>

#include "base/error.h"

namespace octet::log {
namespace {

spdlog::level::level_enum to_spdlog(Level level) {
  switch (level) {
    case Level::debug:
      return spdlog::level::debug;
    case Level::info:
      return spdlog::level::info;
    case Level::warning:
      return spdlog::level::warn;
    case Level::error:
      return spdlog::level::err;
    case Level::off:
      break;
  }
  return spdlog::level::off;
}

// Not spdlog's default logger, which writes to stdout.
spdlog::logger& logger() {
  static const std::shared_ptr<spdlog::logger> instance = [] {
    auto made = std::make_shared<spdlog::logger>(
        "octet", std::make_shared<spdlog::sinks::stderr_color_sink_mt>());
    made->set_pattern("%H:%M:%S.%e %^%l%$ %v");
    made->flush_on(spdlog::level::warn);
    return made;
  }();
  return *instance;
}

}  // namespace

void set_level(Level level) {
  logger().set_level(to_spdlog(level));
}

bool enabled(Level level) {
  return level != Level::off && logger().should_log(to_spdlog(level));
}

Level parse_level(std::string_view text) {
  if (text == "debug") return Level::debug;
  if (text == "info") return Level::info;
  if (text == "warning") return Level::warning;
  if (text == "error") return Level::error;
  if (text == "off") return Level::off;
  throw Error({.what = "unknown log level",
               .value = std::string(text),
               .accepted = "debug, info, warning, error, off"});
}

void write(Level level, std::string_view message) {
  constexpr size_t longest = 16 << 10;  // what is named in it may be megabytes
  if (message.size() <= longest) {
    logger().log(to_spdlog(level), message);
  } else {
    logger().log(to_spdlog(level), shortened(std::string(message.substr(0, longest + 1)), longest));
  }
}

}  // namespace octet::log
