// A GGUF file becomes a checkpoint in Hugging Face layout.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace octet::offline {

struct ConvertOptions {
  std::string source;  // a GGUF file
  std::string out;     // made whole or not at all
  bool overwrite = false;
  int64_t shard_bytes = int64_t{5} << 30;
};

struct ConvertReport {
  int64_t tensors = 0;
  int64_t bytes_before = 0, bytes_after = 0;  // of the GGUF file; of the tensors written
};

// Writes what loading the GGUF itself would compute with: blocks decoded to BF16, floats as they
// are; config.json and the tokenizer from the metadata. Throws Error if the source is no GGUF file
// or one that Octet cannot run. `progress(done, total)` counts bytes written; what it throws ends
// the work without a trace.
ConvertReport convert_checkpoint(const ConvertOptions& options,
                                 const std::function<void(int64_t, int64_t)>& progress = {});

}  // namespace octet::offline
