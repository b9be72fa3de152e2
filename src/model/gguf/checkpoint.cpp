#include "model/gguf/checkpoint.h"

#include <fmt/format.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "model/gguf/hf_files.h"
#include "numerics/half.h"

namespace octet::model {
namespace {

// HF's shape: outermost first.
Shape shape_of(const gguf::NamedTensor& source) {
  const std::vector<int64_t>& dims = source.info->dims;
  if (dims.size() == 1) return {dims[0]};
  if (dims.size() == 2 || source.stacked) return {source.rows, dims[0]};
  if (dims.size() == 3) return {dims[2], dims[1], dims[0]};
  return {dims[3], dims[2], dims[1], dims[0]};
}

}  // namespace

bool is_gguf(const std::string& path) {
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(path, ignored)) return false;
  if (path.ends_with(".gguf")) return true;
  char magic[4] = {};
  std::ifstream(path, std::ios::binary).read(magic, sizeof magic);
  return std::string_view(magic, sizeof magic) == "GGUF";
}

GgufCheckpoint::GgufCheckpoint(const std::string& path)
    : file_(path), parsed_(gguf::parse(file_.bytes(), path)) {
  size_t reserved = 0;
  for (gguf::NamedTensor& source : gguf::hf_tensors(parsed_)) {
    const gguf::BlockType& type = *source.info->type;
    const bool view = type.plain && source.permuted_heads == 0;
    const Shape shape = shape_of(source);
    Entry entry{.source = source,
                .tensor = Tensor(nullptr, type.plain.value_or(DType::bf16), shape)};
    if (view) {
      const auto row_bytes = static_cast<size_t>(source.info->dims[0]) * size_of(*type.plain);
      const std::byte* data =
          source.info->bytes.data() + static_cast<size_t>(source.first_row) * row_bytes;
      // The map is read-only, and so is every weight.
      entry.tensor.data = const_cast<std::byte*>(data);
    } else {
      entry.reserved = reserved;
      const size_t page = ReservedMemory::page();
      reserved += (static_cast<size_t>(entry.tensor.bytes()) + page - 1) / page * page;
    }
    entries_.emplace(source.name, std::move(entry));
  }
  memory_ = ReservedMemory(reserved);
  for (auto& [name, entry] : entries_) {
    if (entry.reserved) entry.tensor.data = memory_.data() + *entry.reserved;
  }
}

const Tensor* GgufCheckpoint::find(std::string_view name, const Shape&) const {
  const auto it = entries_.find(name);
  return it == entries_.end() ? nullptr : &it->second.tensor;
}

std::vector<std::string> GgufCheckpoint::names() const {
  std::vector<std::string> names;
  for (const auto& [name, entry] : entries_) names.push_back(name);
  return names;
}

std::string GgufCheckpoint::locate(std::string_view name) const {
  const auto it = entries_.find(name);
  if (it == entries_.end()) return file_.path().string();
  return fmt::format("{}, tensor '{}'", file_.path().string(), it->second.source.info->name);
}

const GgufCheckpoint::Entry& GgufCheckpoint::entry(std::string_view name) const {
  const auto it = entries_.find(name);
  invariant(it != entries_.end(), "a tensor is read that was not found");
  return it->second;
}

Tensor GgufCheckpoint::read(std::string_view name, const Tensor&) const {
  const Entry& found = entry(name);
  if (found.reserved && !found.made) {
    memory_.commit(*found.reserved, static_cast<size_t>(found.tensor.bytes()));
    make(found);
    found.made = true;
  }
  return found.tensor;
}

void GgufCheckpoint::release(std::string_view name) const {
  const Entry& found = entry(name);
  if (!found.made) return;
  memory_.release(*found.reserved, static_cast<size_t>(found.tensor.bytes()));
  found.made = false;
}

int64_t GgufCheckpoint::made_bytes() const {
  int64_t total = 0;
  for (const auto& [name, entry] : entries_) total += entry.made ? entry.tensor.bytes() : 0;
  return total;
}

// Row by row: plain rows are copied, blocks decoded.
void GgufCheckpoint::make(const Entry& found) const {
  const gguf::NamedTensor& source = found.source;
  const gguf::BlockType& type = *source.info->type;
  const int64_t cols = found.tensor.count() / source.rows;
  const int64_t blocks = cols / type.elements;
  const auto row_bytes = static_cast<size_t>(blocks * type.bytes);
  std::vector<float> values(type.plain ? 0 : static_cast<size_t>(type.elements));
  auto* out = found.tensor.as<std::byte>();
  for (int64_t row = 0; row < source.rows; ++row) {
    const std::byte* stored =
        source.info->bytes.data() + static_cast<size_t>(source.source_row(row)) * row_bytes;
    if (type.plain) {
      std::memcpy(out, stored, row_bytes);
      out += row_bytes;
      continue;
    }
    for (int64_t b = 0; b < blocks; ++b, stored += type.bytes) {
      type.decode(stored, values.data());
      for (const float value : values) {
        const bf16 rounded = to_bf16(value);
        std::memcpy(out, &rounded, sizeof rounded);
        out += sizeof rounded;
      }
    }
  }
}

std::string gguf_config(const std::string& path) {
  const MappedFile file{std::filesystem::path(path)};
  return gguf::config_json(gguf::parse(file.bytes(), path));
}

std::vector<std::string> gguf_notes(const std::string& path, double rope_theta) {
  const MappedFile file{std::filesystem::path(path)};
  return gguf::config_notes(gguf::parse(file.bytes(), path), rope_theta);
}

std::map<std::string, std::string> gguf_tokenizer(const std::string& path) {
  const MappedFile file{std::filesystem::path(path)};
  return gguf::tokenizer_files(gguf::parse(file.bytes(), path).metadata);
}

}  // namespace octet::model
