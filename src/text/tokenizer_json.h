// tokenizer.json and tokenizer_config.json as a TokenizerSpec.
#pragma once

#include <string>
#include <string_view>

#include "text/tokenizer_spec.h"

namespace octet::text {

// Reads the contents of tokenizer.json and tokenizer_config.json (empty: there is none). The names
// are how errors call the files. Throws Error with file, JSON path, value and what is accepted.
TokenizerSpec parse_tokenizer(std::string_view tokenizer, const std::string& tokenizer_name,
                              std::string_view config, const std::string& config_name);

}  // namespace octet::text
