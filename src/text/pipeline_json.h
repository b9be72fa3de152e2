// The parts of tokenizer.json that say how a text is taken apart and put together again.
#pragma once

#include "text/json_node.h"
#include "text/tokenizer_spec.h"

namespace octet::text {

// "normalizer", "pre_tokenizer" and "decoder" of `root` into `spec`; true for a byte-level
// tokenizer, false for a SentencePiece-style one. Throws Error where a part is not known, or where
// the three do not belong together.
bool read_pipeline(const JsonNode& root, TokenizerSpec& spec);

}  // namespace octet::text
