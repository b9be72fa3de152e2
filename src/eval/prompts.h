// A user's own prompts, for tasks that compare what two models make of them.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "eval/dataset.h"

namespace octet::eval {

struct UserPrompt {
  std::string id, text;
};

struct UserPrompts {
  std::vector<UserPrompt> prompts;
  ReadRows rows;
};

// From JSON lines of {"prompt": "...", "id": ...}; without an id a prompt is called by its place. A
// prompt that is empty, or an id that comes twice, is a broken row. Throws Error if nothing can be
// used.
UserPrompts read_prompts(const std::filesystem::path& path);

// How much of two answers is the same: the tokens at their beginning that are equal, as a share of
// the longer one; 1 for two empty ones.
double common_beginning(const std::vector<int32_t>& a, const std::vector<int32_t>& b);

}  // namespace octet::eval
