#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>

#include "base/error.h"
#include "model/gguf/file.h"

namespace octet::model::gguf {
namespace {

template <class T>
T read(const std::byte* p) {
  T value;
  std::memcpy(&value, p, sizeof value);
  return value;
}

// An integer of any type; one above int64's range becomes the largest, which no range accepts.
std::optional<int64_t> integer_at(ValueType type, const std::byte* p) {
  switch (type) {
    case ValueType::u8:
      return read<uint8_t>(p);
    case ValueType::i8:
      return read<int8_t>(p);
    case ValueType::u16:
      return read<uint16_t>(p);
    case ValueType::i16:
      return read<int16_t>(p);
    case ValueType::u32:
      return read<uint32_t>(p);
    case ValueType::i32:
      return read<int32_t>(p);
    case ValueType::i64:
      return read<int64_t>(p);
    case ValueType::u64: {
      constexpr uint64_t most = std::numeric_limits<int64_t>::max();
      return static_cast<int64_t>(std::min(read<uint64_t>(p), most));
    }
    default:
      return std::nullopt;
  }
}

std::optional<double> number_at(ValueType type, const std::byte* p) {
  if (type == ValueType::f32) return read<float>(p);
  if (type == ValueType::f64) return read<double>(p);
  return std::nullopt;
}

std::string_view name_of(ValueType type) {
  constexpr std::string_view names[] = {"u8",   "i8",     "u16",   "i16", "u32", "i32", "f32",
                                        "bool", "string", "array", "u64", "i64", "f64"};
  return names[static_cast<size_t>(type)];
}

std::string describe(const Value& value) {
  if (value.type != ValueType::array) return std::string(name_of(value.type));
  return fmt::format("an array of {} {}", value.count, name_of(value.element));
}

}  // namespace

void Metadata::refuse(std::string_view key, std::string what, std::string value,
                      std::string accepted, std::string fix) const {
  throw Error({.what = std::move(what),
               .where = fmt::format("{}, key '{}'", file_, key),
               .value = std::move(value),
               .accepted = std::move(accepted),
               .fix = std::move(fix)});
}

const Value& Metadata::at(std::string_view key) const {
  const auto it = values_.find(key);
  if (it == values_.end()) refuse(key, "the GGUF file lacks a key", "no such key", "the key");
  return it->second;
}

int64_t Metadata::integer(std::string_view key, int64_t least, int64_t most) const {
  const Value& value = at(key);
  const auto number = integer_at(value.type, value.bytes.data());
  const std::string accepted = fmt::format("an integer from {} to {}", least, most);
  if (!number) refuse(key, "a value has the wrong type", describe(value), accepted);
  if (*number < least || *number > most) {
    refuse(key, "a value is out of range", fmt::format("{}", *number), accepted);
  }
  return *number;
}

int64_t Metadata::integer(std::string_view key, int64_t least, int64_t most,
                          int64_t fallback) const {
  return has(key) ? integer(key, least, most) : fallback;
}

double Metadata::number(std::string_view key) const {
  const Value& value = at(key);
  const auto number = number_at(value.type, value.bytes.data());
  if (!number) refuse(key, "a value has the wrong type", describe(value), "a float");
  if (!std::isfinite(*number)) {
    refuse(key, "a value is not finite", fmt::format("{}", *number), "a finite number");
  }
  return *number;
}

double Metadata::number(std::string_view key, double fallback) const {
  return has(key) ? number(key) : fallback;
}

bool Metadata::flag(std::string_view key, bool fallback) const {
  if (!has(key)) return fallback;
  const Value& value = at(key);
  if (value.type != ValueType::boolean) {
    refuse(key, "a value has the wrong type", describe(value), "a bool");
  }
  return value.bytes[0] != std::byte{0};
}

std::string Metadata::text(std::string_view key) const {
  const Value& value = at(key);
  if (value.type != ValueType::string) {
    refuse(key, "a value has the wrong type", describe(value), "a string");
  }
  return {reinterpret_cast<const char*>(value.bytes.data()) + 8, value.bytes.size() - 8};
}

std::string Metadata::text(std::string_view key, std::string fallback) const {
  return has(key) ? text(key) : std::move(fallback);
}

std::vector<std::string_view> Metadata::strings(std::string_view key) const {
  const Value& value = at(key);
  if (value.type != ValueType::array || value.element != ValueType::string) {
    refuse(key, "a value has the wrong type", describe(value), "an array of strings");
  }
  std::vector<std::string_view> strings;
  strings.reserve(value.count);
  const auto* p = value.bytes.data();
  for (uint64_t i = 0; i < value.count; ++i) {
    const auto length = read<uint64_t>(p);
    strings.emplace_back(reinterpret_cast<const char*>(p) + 8, length);
    p += 8 + length;
  }
  return strings;
}

std::vector<int64_t> Metadata::integers(std::string_view key) const {
  const Value& value = at(key);
  const ValueType type = value.type == ValueType::array ? value.element : value.type;
  std::vector<int64_t> numbers;
  for (uint64_t i = 0; i < value.count; ++i) {
    const auto number = integer_at(type, value.bytes.data() + i * least_bytes(type));
    if (!number) refuse(key, "a value has the wrong type", describe(value), "integers");
    numbers.push_back(*number);
  }
  return numbers;
}

std::vector<float> Metadata::numbers(std::string_view key) const {
  const Value& value = at(key);
  if (value.type != ValueType::array || value.element != ValueType::f32) {
    refuse(key, "a value has the wrong type", describe(value), "an array of f32");
  }
  std::vector<float> numbers;
  for (uint64_t i = 0; i < value.count; ++i) {
    numbers.push_back(read<float>(value.bytes.data() + i * sizeof(float)));
  }
  return numbers;
}

}  // namespace octet::model::gguf
