// Encodes with the tokenizer of a directory: compare_encode DIR < lines. A line in is a JSON
// string, a line out [[id, begin, end], ...] with byte offsets, without BOS and EOS; or null where
// the two ways to encode differ, and that would be a bug.
#include <cstdio>
#include <iostream>
#include <string>

#include "base/error.h"
#include "base/json.h"
#include "text/tokenizer.h"

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fputs("usage: compare_encode DIR < lines\n", stderr);
    return 2;
  }
  try {
    const auto tokenizer = octet::text::Tokenizer::load(argv[1]);
    const octet::text::EncodeOptions options{.add_special_tokens = false};
    std::string line;
    while (std::getline(std::cin, line)) {
      octet::JsonRules rules;
      const std::string text = octet::parse_json(line, "stdin", rules).get<std::string>();
      const std::vector<int32_t> ids = tokenizer.encode(text, options);
      octet::Json row = octet::Json::array();
      std::vector<int32_t> same;
      for (const octet::text::TokenSpan& span : tokenizer.encode_with_offsets(text, options)) {
        row.push_back({span.id, span.begin, span.end});
        same.push_back(span.id);
      }
      std::cout << (ids == same ? octet::dump_json(row) : "null") << "\n";
    }
  } catch (const octet::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 2;
  }
}
