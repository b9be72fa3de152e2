#include "offline/checkpoint_folder.h"

#include <algorithm>
#include <utility>

#include "base/atomic_write.h"
#include "base/error.h"
#include "model/gguf/checkpoint.h"

namespace octet::offline {
namespace {

namespace fs = std::filesystem;

// What belongs to a model beside its weights. config.json is written anew.
constexpr std::string_view kCompanions[] = {"generation_config.json",
                                            "tokenizer.json",
                                            "tokenizer_config.json",
                                            "tokenizer.model",
                                            "vocab.json",
                                            "merges.txt",
                                            "added_tokens.json",
                                            "special_tokens_map.json",
                                            "chat_template.jinja",
                                            "chat_template.json",
                                            "LICENSE",
                                            "LICENSE.txt",
                                            "NOTICE"};

bool lies_in(const fs::path& path, const fs::path& folder) {
  return std::mismatch(folder.begin(), folder.end(), path.begin(), path.end()).first ==
         folder.end();
}

// What --overwrite may remove: a folder that is empty or holds a checkpoint.
bool is_replaceable(const fs::path& folder) {
  if (fs::is_empty(folder) || fs::exists(folder / "config.json")) return true;
  const auto is_weights = [](const fs::directory_entry& entry) {
    return entry.path().extension() == ".safetensors";
  };
  return std::any_of(fs::directory_iterator(folder), fs::directory_iterator(), is_weights);
}

// Whether `folder` is, holds or lies around the source or a file that is linked into it.
bool holds(const fs::path& folder, const fs::path& source) {
  if (lies_in(fs::canonical(source), folder)) return true;
  if (!fs::is_directory(source)) return false;
  return std::any_of(fs::directory_iterator(source), fs::directory_iterator(),
                     [&](const fs::directory_entry& entry) {
                       std::error_code ignored;
                       return lies_in(fs::canonical(entry.path(), ignored), folder);
                     });
}

void write_text(const fs::path& path, const std::string& text) {
  AtomicFile file(path);
  file.write(text);
  file.commit();
}

}  // namespace

void refuse_target(const std::string& source, const std::string& out, bool overwrite) {
  if (out.empty()) {
    throw Error({.what = "the new checkpoint needs a directory",
                 .where = "--out",
                 .value = "''",
                 .accepted = "the path of a directory"});
  }
  if (!overwrite || !fs::is_directory(out) || !fs::exists(source)) return;
  const fs::path folder = fs::canonical(out);
  if (holds(folder, source)) {
    throw Error({.what = "a checkpoint cannot replace the one that it is made from",
                 .where = "--out",
                 .value = out,
                 .fix = "name another directory"});
  }
  if (!is_replaceable(folder)) {
    throw Error(
        {.what = "--overwrite replaces a checkpoint, and this directory holds something else",
         .where = "--out",
         .value = out,
         .accepted = "a directory that is empty or has a config.json or *.safetensors"});
  }
}

OrderedJson read_config_json(const std::string& source) {
  if (!model::is_gguf(source)) {
    return parse_json_file<OrderedJson>(fs::path(source) / "config.json");
  }
  return parse_json<OrderedJson>(model::gguf_config(source), source);
}

void write_companions(const std::string& source, const OrderedJson& config, const fs::path& out) {
  write_text(out / "config.json", dump_json(config, 2) + "\n");
  if (model::is_gguf(source)) {
    for (const auto& [name, text] : model::gguf_tokenizer(source)) write_text(out / name, text);
    return;
  }
  const fs::path folder(source);
  for (const std::string_view name : kCompanions) {
    if (!fs::is_regular_file(folder / name)) continue;
    std::error_code error;
    fs::copy_file(folder / name, out / name, error);
    if (error) {
      throw Error({.what = "cannot copy a file",
                   .where = (folder / name).string(),
                   .value = error.message(),
                   .fix = "check its rights and the space beside --out"});
    }
  }
}

Reading::Reading(const model::WeightSource& source, std::string name)
    : source_(source),
      name_(std::move(name)),
      tensor_(source.read(name_, *source.find(name_, {}))) {}

int64_t total_bytes(const model::WeightSource& source) {
  int64_t total = 0;
  for (const std::string& name : source.names()) total += source.find(name, {})->bytes();
  return total;
}

}  // namespace octet::offline
