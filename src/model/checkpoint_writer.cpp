#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>

#include "base/json.h"
#include "model/checkpoint.h"

namespace octet::model {
namespace {

namespace fs = std::filesystem;

struct Shard {
  std::vector<const PendingTensor*> tensors;  // in the caller's order
  int64_t bytes = 0;
};

int64_t bytes_of(const PendingTensor& tensor) {
  return tensor.shape.count() * static_cast<int64_t>(size_of(tensor.type));
}

// Shards follow the caller's order, so that what belongs to one layer lies in one or two files.
std::vector<Shard> split(const std::vector<PendingTensor>& tensors, int64_t shard_bytes) {
  std::vector<Shard> shards(1);
  for (const PendingTensor& tensor : tensors) {
    const int64_t bytes = bytes_of(tensor);
    if (!shards.back().tensors.empty() && shards.back().bytes + bytes > shard_bytes) {
      shards.emplace_back();
    }
    shards.back().tensors.push_back(&tensor);
    shards.back().bytes += bytes;
  }
  return shards;
}

// How a shard's file begins, and where in it each tensor lies.
struct Layout {
  std::string header;
  std::map<const PendingTensor*, int64_t> offsets;
};

// The order of the safetensors library: wide types first, which aligns every tensor to its type,
// then by name.
bool lies_before(const PendingTensor* a, const PendingTensor* b) {
  const size_t wide_a = size_of(a->type), wide_b = size_of(b->type);
  return wide_a != wide_b ? wide_a > wide_b : a->name < b->name;
}

// The header is the length and the JSON, padded with spaces so that the data start at a multiple
// of 8. Written as text, since a file may have 90,000 tensors, and ordered_json looks every key up
// from the start.
Layout layout_of(const Shard& shard) {
  std::vector<const PendingTensor*> tensors = shard.tensors;
  std::ranges::sort(tensors, lies_before);
  Layout layout;
  std::string json = R"({"__metadata__":{"format":"pt"})";
  int64_t offset = 0;
  for (const PendingTensor* tensor : tensors) {
    const auto& dims = tensor->shape.dims;
    const int64_t end = offset + bytes_of(*tensor);
    json +=
        fmt::format(R"(,{}:{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})",
                    dump_json(Json(tensor->name)), safetensors_name(tensor->type),
                    fmt::join(dims.begin(), dims.begin() + tensor->shape.rank, ","), offset, end);
    layout.offsets[tensor] = offset;
    offset = end;
  }
  json += '}';
  json.resize((json.size() + 7) / 8 * 8, ' ');
  layout.header.resize(8);
  for (size_t i = 0; i < 8; ++i) {
    layout.header[i] = static_cast<char>(json.size() >> (8 * i) & 0xFF);
  }
  layout.header += json;
  for (auto& [tensor, at] : layout.offsets) at += static_cast<int64_t>(layout.header.size());
  return layout;
}

// A file that names itself when writing fails.
class Writer {
 public:
  explicit Writer(fs::path path) : path_(std::move(path)), file_(path_, std::ios::binary) {
    check();
  }
  void write(const void* data, size_t bytes, int64_t offset = 0) {
    file_.seekp(offset);
    file_.write(static_cast<const char*>(data), static_cast<std::streamsize>(bytes));
    check();
  }
  void close() {
    file_.close();
    check();
  }

 private:
  void check() const {
    if (file_) return;
    throw Error({.what = "cannot write a file",
                 .where = path_.string(),
                 .value = std::strerror(errno != 0 ? errno : EIO),
                 .fix = "check the free space of the disk and the rights of the directory"});
  }

  fs::path path_;
  std::ofstream file_;
};

}  // namespace

void write_checkpoint(const std::string& directory, const std::vector<PendingTensor>& tensors,
                      int64_t shard_bytes, const std::function<void(int64_t, int64_t)>& progress) {
  invariant(shard_bytes > 0, "write_checkpoint: a shard must hold something");
  std::set<std::string_view> names;
  int64_t total = 0, done = 0;
  for (const PendingTensor& tensor : tensors) {
    invariant(names.insert(tensor.name).second, "write_checkpoint: a name twice");
    total += bytes_of(tensor);
  }

  const std::vector<Shard> shards = split(tensors, shard_bytes);
  Json index = {{"metadata", {{"total_size", total}}}, {"weight_map", Json::object()}};
  for (size_t i = 0; i < shards.size(); ++i) {
    const std::string name =
        shards.size() == 1 ? "model.safetensors"
                           : fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards.size());
    Writer file(fs::path(directory) / name);
    const Layout layout = layout_of(shards[i]);
    file.write(layout.header.data(), layout.header.size());
    for (const PendingTensor* tensor : shards[i].tensors) {
      const std::vector<std::byte> bytes = tensor->produce();
      invariant(static_cast<int64_t>(bytes.size()) == bytes_of(*tensor),
                "write_checkpoint: a tensor has another size than it promised");
      file.write(bytes.data(), bytes.size(), layout.offsets.at(tensor));
      done += bytes_of(*tensor);
      if (progress) progress(done, total);
      index["weight_map"][tensor->name] = name;
    }
    file.close();
  }
  if (shards.size() == 1) return;
  const std::string text = dump_json(index, 2) + "\n";
  Writer file(fs::path(directory) / "model.safetensors.index.json");
  file.write(text.data(), text.size());
  file.close();
}

}  // namespace octet::model
