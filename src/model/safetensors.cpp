// The safetensors container, read strictly: every rule of the format's reference implementation
// (safetensors/src/tensor.rs), because a checkpoint that is wrong by a few bytes loads without
// complaint and writes fluent nonsense.
//
//   u64 little-endian N | N bytes of JSON, '{' first, may end in spaces | data buffer
#include <fmt/format.h>
#include <simdjson.h>

#include <algorithm>
#include <bit>
#include <limits>
#include <optional>

#include "model/checkpoint.h"

namespace octet::model {
namespace {

namespace dom = simdjson::dom;

constexpr uint64_t kLengthBytes = 8;
constexpr uint64_t kMaxHeader = 100'000'000;  // tensor.rs, MAX_HEADER_SIZE
constexpr std::string_view kDownloadAgain =
    "the file may be cut short or damaged: compare its size and checksum, or download it again";

// A name as it may stand in a message: a damaged header can hold anything.
std::string show(std::string_view name) {
  constexpr size_t kLongest = 200;
  if (name.size() <= kLongest) return fmt::format("'{}'", name);
  return fmt::format("'{}...'", name.substr(0, kLongest));
}

// An entry of the header with the range that it claims, before the ranges are compared.
struct Entry {
  StoredTensor stored;
  uint64_t begin = 0, end = 0;
};

class Reader {
 public:
  Reader(std::span<const std::byte> bytes, const std::string& where)
      : bytes_(bytes), where_(where) {}

  std::vector<StoredTensor> read() {
    const std::string_view header = find_header();
    dom::parser parser;
    dom::element document;
    if (const auto error = parser.parse(header.data(), header.size()).get(document)) {
      refuse({.what = "the safetensors header is not valid JSON",
              .where = fmt::format("offset {}", kLengthBytes),
              .value = simdjson::error_message(error),
              .fix = std::string(kDownloadAgain)});
    }
    dom::object object;
    if (document.get(object)) {
      refuse({.what = "the safetensors header is not a JSON object",
              .where = fmt::format("offset {}", kLengthBytes),
              .accepted = "{\"name\": {\"dtype\", \"shape\", \"data_offsets\"}, ...}"});
    }
    std::vector<Entry> entries;
    for (const dom::key_value_pair field : object) {
      if (field.key == "__metadata__") {
        check_metadata(field.value);
        ++metadata_;
      } else {
        entries.push_back(read_entry(field.key, field.value));
      }
    }
    check_duplicates(entries);
    check_tiling(entries);

    std::vector<StoredTensor> tensors;
    tensors.reserve(entries.size());
    for (Entry& entry : entries) tensors.push_back(std::move(entry.stored));
    return tensors;
  }

 private:
  // `parts.where` is what follows the file's name.
  [[noreturn]] void refuse(ErrorParts parts) const {
    parts.where = parts.where.empty() ? where_ : where_ + ", " + parts.where;
    throw Error(std::move(parts));
  }

  std::string_view find_header() {
    if (bytes_.size() < kLengthBytes) {
      refuse({.what = "a safetensors file is too short for its header",
              .where = "offset 0",
              .value = fmt::format("{} bytes", bytes_.size()),
              .accepted = fmt::format("at least {} bytes", kLengthBytes),
              .fix = std::string(kDownloadAgain)});
    }
    uint64_t length = 0;
    for (size_t i = kLengthBytes; i-- > 0;)
      length = length << 8 | std::to_integer<uint64_t>(bytes_[i]);
    if (length > kMaxHeader) {
      refuse({.what = "the length of the safetensors header is out of range",
              .where = "offset 0",
              .value = fmt::format("{} bytes", length),
              .accepted = fmt::format("at most {} bytes", kMaxHeader),
              .fix = "this may not be a safetensors file (a Git LFS pointer or a pickle, say)"});
    }
    if (length > bytes_.size() - kLengthBytes) {
      refuse({.what = "the safetensors header reaches beyond the end of the file",
              .where = "offset 0",
              .value = fmt::format("a header of {} bytes in a file of {}", length, bytes_.size()),
              .accepted = fmt::format("at most {} bytes", bytes_.size() - kLengthBytes),
              .fix = std::string(kDownloadAgain)});
    }
    data_start_ = kLengthBytes + length;
    data_bytes_ = bytes_.size() - data_start_;
    const std::string_view header(reinterpret_cast<const char*>(bytes_.data()) + kLengthBytes,
                                  static_cast<size_t>(length));
    if (!header.starts_with('{')) {
      refuse({.what = "the safetensors header does not start with '{'",
              .where = fmt::format("offset {}", kLengthBytes),
              .value = header.empty()
                           ? "an empty header"
                           : fmt::format("byte 0x{:02x}", static_cast<uint8_t>(header[0])),
              .accepted = "a JSON object",
              .fix = "this may not be a safetensors file (a Git LFS pointer or a pickle, say)"});
    }
    return header;
  }

  void check_metadata(dom::element value) const {
    dom::object map;
    if (value.get(map)) {
      refuse({.what = "the safetensors metadata is not an object",
              .where = "__metadata__",
              .accepted = "strings by name"});
    }
    for (const dom::key_value_pair field : map) {
      if (field.value.is_string()) continue;
      refuse({.what = "the safetensors metadata has a value that is not a string",
              .where = fmt::format("__metadata__, key {}", show(field.key)),
              .value = simdjson::minify(field.value).substr(0, 80),
              .accepted = "strings by name"});
    }
  }

  Entry read_entry(std::string_view name, dom::element value) const {
    const std::string place = fmt::format("tensor {}", show(name));
    dom::object fields;
    if (value.get(fields)) {
      refuse({.what = "a tensor's entry is not an object",
              .where = place,
              .value = simdjson::minify(value).substr(0, 80),
              .accepted = "{\"dtype\", \"shape\", \"data_offsets\"}"});
    }
    std::optional<dom::element> dtype, shape, offsets;
    for (const dom::key_value_pair field : fields) {
      std::optional<dom::element>* slot = field.key == "dtype"          ? &dtype
                                          : field.key == "shape"        ? &shape
                                          : field.key == "data_offsets" ? &offsets
                                                                        : nullptr;
      if (!slot) continue;
      if (*slot) {
        refuse({.what = "a tensor's entry has a key twice",
                .where = place,
                .value = fmt::format("\"{}\"", field.key)});
      }
      *slot = field.value;
    }
    const auto required = [&](const std::optional<dom::element>& field, std::string_view key) {
      if (field) return *field;
      refuse({.what = "a tensor's entry lacks a key",
              .where = place,
              .value = simdjson::minify(value).substr(0, 80),
              .accepted = fmt::format("\"{}\" beside the others", key)});
    };
    Entry entry;
    entry.stored.name = name;
    const DType type = read_dtype(required(dtype, "dtype"), place);
    const Shape dims = read_shape(required(shape, "shape"), place);
    std::tie(entry.begin, entry.end) = read_offsets(required(offsets, "data_offsets"), place);

    const auto bytes = static_cast<uint64_t>(dims.count()) * size_of(type);
    if (entry.end - entry.begin != bytes) {
      refuse({.what = "a tensor's shape and its data differ in size",
              .where = fmt::format("{}, offset {}", place, data_start_ + entry.begin),
              .value = fmt::format("{} bytes of data", entry.end - entry.begin),
              .accepted =
                  fmt::format("{} bytes for {} {}", bytes, safetensors_name(type), to_string(dims)),
              .fix = std::string(kDownloadAgain)});
    }
    if (entry.end > data_bytes_) {
      refuse({.what = "a tensor's data reach beyond the end of the file",
              .where = fmt::format("{}, offset {}", place, data_start_ + entry.begin),
              .value = fmt::format("a file of {} bytes", bytes_.size()),
              .accepted = fmt::format("at least {} bytes", data_start_ + entry.end),
              .fix = std::string(kDownloadAgain)});
    }
    entry.stored.file_offset = data_start_ + entry.begin;
    // Tensors of weights are views that nobody writes through; Tensor has no const form.
    auto* data = const_cast<std::byte*>(bytes_.data()) + entry.stored.file_offset;
    entry.stored.tensor = Tensor(data, type, dims);
    return entry;
  }

  DType read_dtype(dom::element value, const std::string& place) const {
    std::string_view text;
    const bool is_string = value.get(text) == simdjson::SUCCESS;
    const auto type = is_string ? parse_safetensors_dtype(text) : std::nullopt;
    if (type) return *type;
    refuse({.what = "a tensor has a type that Octet does not know",
            .where = place + ", dtype",
            .value =
                is_string ? std::string(text.substr(0, 80)) : simdjson::minify(value).substr(0, 80),
            .accepted = "BOOL, U8, I8, U16, I16, U32, I32, U64, I64, F8_E4M3, F8_E5M2, F8_E8M0, "
                        "F16, BF16, F32, F64"});
  }

  Shape read_shape(dom::element value, const std::string& place) const {
    const auto fail = [&](std::string what, std::string accepted) {
      refuse({.what = std::move(what),
              .where = place + ", shape",
              .value = simdjson::minify(value).substr(0, 80),
              .accepted = std::move(accepted)});
    };
    dom::array dims;
    if (value.get(dims)) fail("a tensor's shape is not an array", "integers that are not negative");
    Shape shape;
    // The product as if no dimension were zero: it bounds every stride as well as the size, which
    // counts at most 8 bytes an element.
    uint64_t product = 8;
    for (const dom::element dim : dims) {
      uint64_t extent = 0;
      if (dim.get(extent)) {
        fail("a tensor's shape has a dimension that is no size", "integers that are not negative");
      }
      if (shape.rank == kMaxRank) {
        fail("a tensor has more dimensions than Octet supports",
             fmt::format("at most {}", kMaxRank));
      }
      if (__builtin_mul_overflow(product, std::max<uint64_t>(extent, 1), &product) ||
          product > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
        fail("a tensor's shape overflows 64 bits", "dimensions whose product fits");
      }
      shape.dims[static_cast<size_t>(shape.rank++)] = static_cast<int64_t>(extent);
    }
    return shape;
  }

  std::pair<uint64_t, uint64_t> read_offsets(dom::element value, const std::string& place) const {
    dom::array pair;
    uint64_t begin = 0, end = 0;
    const bool valid = value.get(pair) == simdjson::SUCCESS && pair.size() == 2 &&
                       pair.at(0).get(begin) == simdjson::SUCCESS &&
                       pair.at(1).get(end) == simdjson::SUCCESS && begin <= end;
    if (!valid) {
      refuse({.what = "a tensor's data offsets are malformed",
              .where = place + ", data_offsets",
              .value = simdjson::minify(value).substr(0, 80),
              .accepted = "[begin, end] with 0 <= begin <= end"});
    }
    return {begin, end};
  }

  void check_duplicates(const std::vector<Entry>& entries) const {
    std::vector<std::string_view> names;
    names.reserve(entries.size());
    for (const Entry& entry : entries) names.push_back(entry.stored.name);
    std::ranges::sort(names);
    const auto twice = std::ranges::adjacent_find(names);
    if (twice == names.end() && metadata_ <= 1) return;
    refuse({.what = "the safetensors header has a key twice",
            .where = twice == names.end() ? "__metadata__" : fmt::format("tensor {}", show(*twice)),
            .accepted = "every name once"});
  }

  // The tensors, sorted by offset, must cover the data buffer from its first byte to its last.
  void check_tiling(std::vector<Entry>& entries) const {
    std::ranges::sort(entries, {}, [](const Entry& e) { return std::pair(e.begin, e.end); });
    uint64_t covered = 0;
    std::string_view before;
    for (const Entry& entry : entries) {
      if (entry.begin != covered) {
        const bool overlap = entry.begin < covered;
        refuse({.what = overlap ? "two tensors overlap" : "there is a hole between tensors",
                .where = fmt::format("tensor {}, offset {}", show(entry.stored.name),
                                     data_start_ + entry.begin),
                .value = fmt::format("data_offsets [{}, {}]", entry.begin, entry.end),
                .accepted = before.empty() ? std::string("a begin of 0: it is the first tensor")
                                           : fmt::format("a begin of {}, where tensor {} ends",
                                                         covered, show(before)),
                .fix = std::string(kDownloadAgain)});
      }
      covered = entry.end;
      before = entry.stored.name;
    }
    if (covered != data_bytes_) {
      refuse({.what = "a safetensors file has bytes that belong to no tensor",
              .where = fmt::format("offset {}", data_start_ + covered),
              .value = fmt::format("a file of {} bytes", bytes_.size()),
              .accepted = fmt::format("{} bytes", data_start_ + covered),
              .fix = std::string(kDownloadAgain)});
    }
  }

  std::span<const std::byte> bytes_;
  const std::string& where_;
  uint64_t data_start_ = 0, data_bytes_ = 0;
  int metadata_ = 0;
};

}  // namespace

std::vector<StoredTensor> parse_safetensors(std::span<const std::byte> bytes,
                                            const std::string& where) {
  return Reader(bytes, where).read();
}

}  // namespace octet::model
