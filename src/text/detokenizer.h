// Streaming detokenization: ids in, text out, at each moment as much as is certain.
//
// The bytes of the tokens are put in a row; what is valid UTF-8 is given out, an incomplete
// character at the end (at most 3 bytes) is held back until it is complete or cannot become so.
// Invariant: all that push() and flush() returned, joined, is Tokenizer::decode of all ids, but for
// the space that a SentencePiece-style decode drops: here it stays, since the text stands behind a
// prompt.
#pragma once

#include <cstdint>
#include <string>

#include "text/tokenizer.h"
#include "text/utf8.h"

namespace octet::text {

// State of one sequence; belongs to one thread at a time.
class Detokenizer {
 public:
  // `tokenizer` must outlive this. `skip_special` leaves special tokens out, as in decode.
  explicit Detokenizer(const Tokenizer& tokenizer, bool skip_special = true)
      : tokenizer_(&tokenizer),
        skip_special_(skip_special),
        replacement_(tokenizer.replaces_each_byte() ? Replacement::each_byte
                                                    : Replacement::each_subpart) {}

  // The text that became certain with this id: valid UTF-8, possibly empty. Bytes that can never be
  // part of a character give one U+FFFD for each maximal invalid subpart (with byte fallback, for
  // each byte). Ids that do not exist
  // give nothing. Never feed the prompt: its text is not the model's, and a prompt that ends inside
  // a character would leak into the answer.
  std::string push(int32_t id);

  // The end of the stream: an incomplete character becomes U+FFFD. Ready for a new stream then.
  std::string flush();

  // Bytes held back: 0 to 3.
  size_t pending_bytes() const { return pending_.size(); }

 private:
  const Tokenizer* tokenizer_;
  bool skip_special_;
  Replacement replacement_;
  std::string pending_;
};

}  // namespace octet::text
