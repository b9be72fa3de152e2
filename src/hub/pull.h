// A model from a hub or a web server becomes a directory. Hubs speak Hugging Face's interface:
// {endpoint}/api/models/{repo} lists the files, {endpoint}/{repo}/resolve/{revision}/{file} has
// them.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "hub/download.h"

namespace octet::hub {

struct PullOptions {
  std::string source;  // "ORG/NAME", the address of such a page, or the address of one file
  std::string out;     // the new directory
  std::string endpoint = "https://huggingface.co";
  std::string revision;                       // "" = the one in the address, or main
  std::vector<std::string> include, exclude;  // globs over file names
  TransferOptions transfer;
};

// What `source` names.
struct Source {
  Url endpoint;
  std::string repo;      // "ORG/NAME"; empty for the address of a single file
  std::string revision;  // "main"
  std::string file;      // of the repo, if it names only one
  Url url;               // of a single file
};
Source parse_source(const PullOptions& options);  // throws Error

struct ListedFile {
  std::string name;  // a relative path that stays inside
  std::optional<int64_t> size;
  std::optional<std::string> sha256;
};

// The files that a hub's answer lists. Throws Error for a name that would leave the directory.
std::vector<ListedFile> parse_listing(const std::string& json, const std::string& where,
                                      std::string* commit);

// Those of `files` that a user wants: what --include names, without what --exclude names. Without
// both, what Octet has no use for is left out: weights in other formats than safetensors where
// there are safetensors. Throws Error if nothing is left, or if several GGUF files are there to
// choose from.
std::vector<ListedFile> choose(std::vector<ListedFile> files,
                               const std::vector<std::string>& include,
                               const std::vector<std::string>& exclude, const std::string& where);

// A relative path without "..", empty parts, backslashes or control characters.
bool is_safe_name(std::string_view name);

struct PullReport {
  std::string revision;  // the commit, where the hub says it
  std::vector<std::string> files;
  int64_t bytes = 0;
};

// What is known before the first file: their number and bytes (0: not known).
using OnPlan = std::function<void(size_t files, int64_t bytes)>;

// Downloads into ".NAME.pull" beside `out` and renames it to `out` when all is there: a pull that
// is cut off or killed is continued by the same command. Throws Error if `out` exists or another
// process pulls to it.
PullReport pull(const PullOptions& options, const OnPlan& on_plan, const OnBytes& on_bytes);

}  // namespace octet::hub
