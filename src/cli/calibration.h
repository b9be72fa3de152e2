// Runs a text through a 16-bit model to see what enters its linears.
#pragma once

#include <cstdint>
#include <string>

#include "base/thread_pool.h"
#include "offline/input_moments.h"

namespace octet::cli {

struct CalibrationRun {
  std::string model, text;  // a directory or .gguf; a file
  int64_t tokens = 32768;   // of the text, at most
  int64_t window = 512;     // tokens that see one another, BOS included
};

// The moments of the inputs of all linears. Error if the text is empty, not UTF-8 or too short to
// fill one window, if an activation is NaN, or if the moments do not fit into memory.
offline::InputMoments observe_inputs(const CalibrationRun& run, ThreadPool& threads);

}  // namespace octet::cli
