// A GGUF file (version 2 or 3, little-endian): metadata under typed keys, and tensors. Parsing
// checks everything that later code relies on, so that the rest need not (models-numerics A.10;
// docs/gguf.md of ggml).
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/gguf/blocks.h"

namespace octet::model::gguf {

enum class ValueType : uint32_t {
  u8,
  i8,
  u16,
  i16,
  u32,
  i32,
  f32,
  boolean,
  string,
  array,
  u64,
  i64,
  f64
};

// Bytes of a value of this type in the file; of strings and arrays, those of the empty one.
size_t least_bytes(ValueType type);

// A value as it is encoded: a view of the file's bytes, which were checked.
struct Value {
  ValueType type = ValueType::u8;
  ValueType element = ValueType::u8;  // of an array
  uint64_t count = 1;                 // of an array
  std::span<const std::byte> bytes;   // without type and count
};

// The keys and values of a file. The getters throw Error naming the file and the key if the key is
// absent (unless a fallback is given), if it has another type, or is out of range. Integers of all
// widths and signs are one type, as are both floats.
class Metadata {
 public:
  explicit Metadata(std::string file) : file_(std::move(file)) {}

  bool has(std::string_view key) const { return values_.find(key) != values_.end(); }
  int64_t integer(std::string_view key, int64_t least, int64_t most) const;
  int64_t integer(std::string_view key, int64_t least, int64_t most, int64_t fallback) const;
  double number(std::string_view key) const;
  double number(std::string_view key, double fallback) const;
  bool flag(std::string_view key, bool fallback) const;
  std::string text(std::string_view key) const;
  std::string text(std::string_view key, std::string fallback) const;
  // Views of the file's bytes.
  std::vector<std::string_view> strings(std::string_view key) const;
  std::vector<int64_t> integers(std::string_view key) const;  // of one integer, too
  std::vector<float> numbers(std::string_view key) const;

  const std::string& file() const { return file_; }
  // False if the key is there already.
  bool add(std::string key, Value value) { return values_.emplace(std::move(key), value).second; }
  // The Error for a value that is wrong in a way the getters do not know.
  [[noreturn]] void refuse(std::string_view key, std::string what, std::string value,
                           std::string accepted, std::string fix = "") const;

 private:
  const Value& at(std::string_view key) const;

  std::string file_;
  std::map<std::string, Value, std::less<>> values_;
};

struct TensorInfo {
  std::string name;
  const BlockType* type = nullptr;
  std::vector<int64_t> dims;         // innermost first, as stored: a [out, in] matrix has {in, out}
  std::span<const std::byte> bytes;  // all its blocks; inside the file, aligned as the file says
  size_t file_offset = 0;
};

struct File {
  uint32_t version = 0;
  Metadata metadata;
  std::vector<TensorInfo> tensors;  // in the order of the file
};

// Views into `bytes`; `where` names the file in errors. Throws Error naming the file, the offset,
// and the key or tensor.
File parse(std::span<const std::byte> bytes, const std::string& where);

}  // namespace octet::model::gguf
