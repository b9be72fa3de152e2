// Which tensors a GGUF file's tensors were before its converter renamed, permuted and stacked them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/gguf/file.h"

namespace octet::model::gguf {

// One tensor as the Hugging Face checkpoint has it. Its row r is row source_row(r) of `info`, whose
// leading axes count as rows.
struct NamedTensor {
  std::string name;
  const TensorInfo* info = nullptr;
  int64_t rows = 1;            // of this tensor
  int64_t first_row = 0;       // of it in `info`: not 0 for one of several stacked experts
  int64_t permuted_heads = 0;  // 0: the rows are in order
  bool stacked = false;        // one of several matrices in `info`

  // llama.cpp's q and k of the architecture "llama" are for rotations of neighbours, HF's for
  // rotations of halves: row 2j of a head is HF's row j, row 2j + 1 HF's row j + dim / 2.
  int64_t source_row(int64_t row) const;
};

// All tensors of the file but rope_freqs.weight, which config.json speaks of. One whose name no
// rule knows keeps it. Throws Error if two become one name or the heads do not divide the rows.
std::vector<NamedTensor> hf_tensors(const File& file);

}  // namespace octet::model::gguf
