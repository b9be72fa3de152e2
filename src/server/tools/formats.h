// The parsers of the single formats (tool_parser.h), a file each.
#pragma once

#include <algorithm>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "server/tools/tool_parser.h"

namespace octet::server {

std::unique_ptr<ToolParser> make_hermes_parser(std::vector<std::string> names);
std::unique_ptr<ToolParser> make_llama3_parser(std::vector<std::string> names);
std::unique_ptr<ToolParser> make_deepseek_parser(std::vector<std::string> names);

// Where the first of some marks stands in the text, or begins at its end and may still be
// completed; text.size() if nowhere.
size_t find_mark(std::string_view text, std::initializer_list<std::string_view> marks, bool ended);

// Whether a mark stands at text[at]: yes, no, or not to be known yet.
enum class Stands : uint8_t { yes, no, unknown };
Stands stands(std::string_view text, size_t at, std::string_view mark, bool ended);

}  // namespace octet::server
