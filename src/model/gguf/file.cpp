#include "model/gguf/file.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <set>

#include "base/error.h"

namespace octet::model::gguf {

size_t least_bytes(ValueType type) {
  switch (type) {
    case ValueType::u8:
    case ValueType::i8:
    case ValueType::boolean:
      return 1;
    case ValueType::u16:
    case ValueType::i16:
      return 2;
    case ValueType::u32:
    case ValueType::i32:
    case ValueType::f32:
      return 4;
    case ValueType::array:
      return 12;  // type and count
    default:
      return 8;
  }
}

namespace {

constexpr uint32_t kMagic = 0x46554747;  // "GGUF"
constexpr size_t kLongestKey = 65535;
constexpr size_t kLongestName = 256;  // llama.cpp has 63; some converters write longer ones
constexpr uint32_t kMostDims = 4;
constexpr int kDeepestArray = 4;
constexpr uint64_t kLargestDim = uint64_t{1} << 40;

// Reads from front to back; every read is checked.
class Cursor {
 public:
  Cursor(std::span<const std::byte> bytes, const std::string& where)
      : bytes_(bytes), where_(where) {}

  size_t offset() const { return offset_; }
  size_t left() const { return bytes_.size() - offset_; }

  // What take() will give; there must be so much.
  template <class T>
  T peek() const {
    T value;
    std::memcpy(&value, bytes_.data() + offset_, sizeof value);
    return value;
  }

  template <class T>
  T take(std::string_view what) {
    T value;
    std::memcpy(&value, skip(sizeof value, what), sizeof value);
    return value;
  }

  // `count` bytes that are passed over.
  const std::byte* skip(uint64_t count, std::string_view what) {
    if (count > left()) {
      fail(fmt::format("{} reaches beyond the end of the file", what),
           fmt::format("{} bytes", count), fmt::format("at most {}", left()));
    }
    const std::byte* at = bytes_.data() + offset_;
    offset_ += count;
    return at;
  }

  std::string_view string(std::string_view what) {
    const auto length = take<uint64_t>(what);
    return {reinterpret_cast<const char*>(skip(length, what)), length};
  }

  // A name: printable ASCII, so that it can be shown as it is.
  std::string name(std::string_view what, size_t most) {
    const size_t start = offset_;
    const std::string_view text = string(what);
    const bool plain = std::ranges::all_of(text, [](char c) { return c > ' ' && c <= '~'; });
    if (text.empty() || text.size() > most || !plain) {
      offset_ = start;
      fail(fmt::format("{} is no name", what), fmt::format("{} bytes", text.size()),
           fmt::format("1 to {} printable ASCII characters", most));
    }
    return std::string(text);
  }

  // A count of things of which each takes `least` bytes or more: what is not there is not counted.
  uint64_t count(std::string_view what, size_t least) {
    const size_t start = offset_;
    const auto count = take<uint64_t>(what);
    if (count <= left() / least) return count;
    offset_ = start;
    fail(fmt::format("{} is larger than the file", what), fmt::format("{}", count),
         fmt::format("at most {}", left() / least));
  }

  [[noreturn]] void fail(std::string what, std::string value, std::string accepted,
                         std::string fix = "") const {
    throw Error({.what = std::move(what),
                 .where = fmt::format("{}, offset {}{}", where_, offset_, context_),
                 .value = std::move(value),
                 .accepted = std::move(accepted),
                 .fix = std::move(fix)});
  }

  // ", key 'general.name'": what is being read, for errors.
  void set_context(std::string context) { context_ = std::move(context); }

 private:
  std::span<const std::byte> bytes_;
  const std::string& where_;
  size_t offset_ = 0;
  std::string context_;
};

uint32_t read_version(Cursor& in) {
  if (in.left() < 24) {
    in.fail("the file is too short for GGUF", fmt::format("{} bytes", in.left()), "at least 24");
  }
  if (const auto magic = in.peek<uint32_t>(); magic != kMagic) {
    in.fail("not a GGUF file", fmt::format("0x{:08X}", magic), "the bytes 'GGUF' at its beginning");
  }
  in.skip(sizeof kMagic, "the magic");
  const auto version = in.take<uint32_t>("the version");
  if (version == 2 || version == 3) return version;
  if (version == 0x02000000 || version == 0x03000000) {
    in.fail("the GGUF file is big-endian", fmt::format("0x{:08X}", version), "little-endian",
            "convert it again for a little-endian machine");
  }
  in.fail("a version of GGUF that Octet does not read", fmt::format("{}", version), "2 or 3",
          "convert the model again with a current llama.cpp");
}

ValueType read_type(Cursor& in) {
  const auto type = in.take<uint32_t>("a type");
  if (type <= static_cast<uint32_t>(ValueType::f64)) return static_cast<ValueType>(type);
  in.fail("unknown type of a value", fmt::format("{}", type), "0 to 12");
}

void skip_value(Cursor& in, ValueType type, int depth);

void skip_elements(Cursor& in, ValueType element, uint64_t count, int depth) {
  if (element != ValueType::string && element != ValueType::array &&
      element != ValueType::boolean) {
    in.skip(count * least_bytes(element), "an array");  // no overflow: count was checked
    return;
  }
  for (uint64_t i = 0; i < count; ++i) skip_value(in, element, depth);
}

void skip_value(Cursor& in, ValueType type, int depth) {
  switch (type) {
    case ValueType::string:
      in.string("a string");
      return;
    case ValueType::boolean:
      if (const auto flag = in.take<uint8_t>("a bool"); flag > 1) {
        in.fail("a bool is neither 0 nor 1", fmt::format("{}", flag), "0 or 1");
      }
      return;
    case ValueType::array: {
      if (depth == kDeepestArray) {
        in.fail("arrays are nested too deeply", fmt::format("{} levels", depth + 1),
                fmt::format("at most {}", kDeepestArray));
      }
      const ValueType element = read_type(in);
      const uint64_t count = in.count("the length of an array", least_bytes(element));
      skip_elements(in, element, count, depth + 1);
      return;
    }
    default:
      in.skip(least_bytes(type), "a value");
  }
}

// Checks a value and gives the view of it.
Value read_value(Cursor& in, std::span<const std::byte> file) {
  Value value;
  value.type = read_type(in);
  size_t start = in.offset();
  if (value.type == ValueType::array) {
    value.element = read_type(in);
    value.count = in.count("the length of an array", least_bytes(value.element));
    start = in.offset();
    skip_elements(in, value.element, value.count, 1);
  } else {
    skip_value(in, value.type, 0);
  }
  value.bytes = file.subspan(start, in.offset() - start);
  return value;
}

// Name, type and dimensions; the data's place is filled in when the data section's is known.
struct PendingInfo {
  TensorInfo info;
  uint64_t offset = 0, bytes = 0;
};

PendingInfo read_info(Cursor& in) {
  PendingInfo pending;
  in.set_context("");
  pending.info.name = in.name("a tensor's name", kLongestName);
  in.set_context(fmt::format(", tensor '{}'", pending.info.name));
  const auto dims = in.take<uint32_t>("the number of dimensions");
  if (dims == 0 || dims > kMostDims) {
    in.fail("a tensor has too few or too many dimensions", fmt::format("{}", dims),
            fmt::format("1 to {}", kMostDims));
  }
  uint64_t elements = 1;
  for (uint32_t i = 0; i < dims; ++i) {
    const auto dim = in.take<uint64_t>("a dimension");
    if (dim == 0 || dim > kLargestDim || elements > kLargestDim * 64 / dim) {
      in.fail("a dimension of a tensor is out of range", fmt::format("{}", dim),
              "at least 1, and a product of at most 2^46");
    }
    elements *= dim;
    pending.info.dims.push_back(static_cast<int64_t>(dim));
  }
  const auto id = in.take<uint32_t>("the type");
  pending.info.type = find_block_type(id);
  if (!pending.info.type) {
    in.fail("a tensor has a type that Octet does not read", fmt::format("GGML type {}", id),
            block_type_names(), "quantize the model to another type with llama.cpp");
  }
  const BlockType& type = *pending.info.type;
  if (pending.info.dims[0] % type.elements != 0) {
    in.fail("the rows of a tensor are no whole blocks",
            fmt::format("{} values of {}", pending.info.dims[0], type.name),
            fmt::format("a multiple of {}", type.elements));
  }
  pending.offset = in.take<uint64_t>("an offset");
  pending.bytes =
      elements / static_cast<uint64_t>(type.elements) * static_cast<uint64_t>(type.bytes);
  return pending;
}

// Where the tensors lie; each inside the file, at a multiple of the alignment, and none in another.
void place_tensors(std::vector<PendingInfo>& pending, std::span<const std::byte> bytes, size_t data,
                   uint64_t alignment, const std::string& where) {
  const uint64_t room = bytes.size() < data ? 0 : bytes.size() - data;
  const auto fail = [&](const PendingInfo& p, std::string what, std::string accepted) {
    throw Error({.what = std::move(what),
                 .where = fmt::format("{}, tensor '{}'", where, p.info.name),
                 .value = fmt::format("{} bytes at offset {} of the data", p.bytes, p.offset),
                 .accepted = std::move(accepted),
                 .fix = "download the file again: it is cut off or damaged"});
  };
  std::vector<const PendingInfo*> order;
  for (PendingInfo& p : pending) {
    if (p.offset % alignment != 0) {
      fail(p, "a tensor's data is not aligned", fmt::format("a multiple of {}", alignment));
    }
    if (p.offset > room || p.bytes > room - p.offset) {
      fail(p, "a tensor's data reaches beyond the end of the file",
           fmt::format("data of {} bytes in all", room));
    }
    p.info.bytes = bytes.subspan(data + p.offset, p.bytes);
    p.info.file_offset = data + p.offset;
    order.push_back(&p);
  }
  std::ranges::sort(order, {}, &PendingInfo::offset);
  for (size_t i = 1; i < order.size(); ++i) {
    if (order[i - 1]->offset + order[i - 1]->bytes <= order[i]->offset) continue;
    fail(*order[i], fmt::format("a tensor's data overlaps that of '{}'", order[i - 1]->info.name),
         "data of its own");
  }
}

}  // namespace

File parse(std::span<const std::byte> bytes, const std::string& where) {
  Cursor in(bytes, where);
  File file{.version = read_version(in), .metadata = Metadata(where)};
  const uint64_t tensors = in.count("the number of tensors", 33);
  const uint64_t keys = in.count("the number of keys", 14);

  for (uint64_t i = 0; i < keys; ++i) {
    in.set_context("");
    std::string key = in.name("a key", kLongestKey);
    in.set_context(fmt::format(", key '{}'", key));
    const Value value = read_value(in, bytes);
    if (!file.metadata.add(key, value)) in.fail("a key occurs twice", key, "distinct keys");
  }
  std::vector<PendingInfo> pending;
  std::set<std::string_view> names;
  pending.reserve(tensors);  // bounded by the file's size
  for (uint64_t i = 0; i < tensors; ++i) {
    pending.push_back(read_info(in));
    const std::string& name = pending.back().info.name;
    if (!names.insert(name).second) in.fail("a tensor occurs twice", name, "distinct names");
  }

  constexpr const char* alignment_key = "general.alignment";
  const auto alignment =
      static_cast<uint64_t>(file.metadata.integer(alignment_key, 1, 1 << 20, 32));
  if (!std::has_single_bit(alignment)) {
    file.metadata.refuse(alignment_key, "the alignment is no power of two",
                         fmt::format("{}", alignment), "a power of two");
  }
  const size_t data = (in.offset() + alignment - 1) / alignment * alignment;
  place_tensors(pending, bytes, data, alignment, where);
  for (PendingInfo& p : pending) file.tensors.push_back(std::move(p.info));
  return file;
}

}  // namespace octet::model::gguf
