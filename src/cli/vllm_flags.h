// Flags of `vllm serve` that `octet serve` has no row for: commands that people have should run, or
// say what to write instead.
#pragma once

#include <string>
#include <vector>

#include "cli/verbs.h"

namespace octet::cli {

// The arguments without those that have no effect here because what they ask for is always so
// (told at level info). Throws Error for those whose meaning cannot be had, naming what to do.
// Others are left for the option table.
std::vector<std::string> without_vllm_flags(Args args);

}  // namespace octet::cli
