// Stop strings, found in text as it streams: text that may be the beginning of a stop string is
// held back, all other text is passed on at once.
//
// Which stop wins: the one that is complete first, whatever the tokens are; of those complete at
// the same character the longest, which begins first. So the result depends on the text alone, not
// on how it was cut into tokens.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

namespace octet::text {

class StopMatcher {
 public:
  struct Result {
    std::string text;      // text to pass on now, in order; empty where all is held back
    bool stopped = false;  // a stop string is complete: nothing follows
    // The rest is set where `stopped`:
    int32_t stop = -1;      // index of the stop string
    size_t text_bytes = 0;  // length of all text passed on: where the stop string begins
    int32_t kept_tokens =
        0;  // the fewest tokens whose text holds those bytes: the one that the cut
            // goes through counts, one that begins with the stop string does not
  };

  // No stops: text passes through. With `include_stop` the stop string itself is passed on as well,
  // and text_bytes and kept_tokens count it. Throws Error for a stop that is empty or not UTF-8.
  explicit StopMatcher(std::vector<std::string> stops, bool include_stop = false);

  // The text of the next token (from Detokenizer::push; may be empty): call it once a token, so
  // that kept_tokens is right. Costs a few operations a byte and stop string, and no more than the
  // longest stop string is ever held back. After a stop, it returns nothing more (stopped again).
  Result push(std::string_view token_text);

  // The end of the stream without a stop: `last` (from Detokenizer::flush) belongs to the last
  // token and can complete a stop; otherwise all that is held back is passed on.
  Result flush(std::string_view last = {});

  bool stopped() const { return result_.stopped; }
  size_t held_bytes() const { return held_.size(); }

 private:
  struct Stop {
    std::string text;
    std::vector<uint32_t> border;  // border[n]: the longest proper border of the first n bytes
    uint32_t matched = 0;          // the longest prefix of `text` that the stream now ends with
  };
  Result feed(std::string_view text);
  void finish(int32_t stop);

  std::vector<Stop> stops_;
  bool include_stop_;
  std::string held_;   // the end of the stream that was not passed on
  size_t passed_ = 0;  // bytes before it
  // Where the text of tokens ends, for those at or behind `passed_`; before them come
  // `tokens_before_` tokens.
  std::deque<size_t> ends_;
  int32_t tokens_before_ = 0;
  Result result_;  // without text; the final answer once stopped
};

}  // namespace octet::text
