// The form of an answer that is a call of a tool, whatever the model would rather say: what a
// grammar needs for tool_choice "required" or a function's name.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "server/tools/tool_parser.h"

namespace octet::server {

// A function that a request offers.
struct ToolFunction {
  std::string name;
  OrderedJson parameters;  // a JSON schema; null: any object
};

// `before`, JSON of `schema`, and `after`, in a row.
struct ForcedCall {
  OrderedJson schema;
  std::string before, after;
};

// One call of one of the functions, as the format's parser reads it. Nothing if the format cannot
// leave the choice among several (DeepSeek's, which writes the name outside of the JSON). Throws
// Error naming the function if a $ref of its parameters leads to nothing in them.
std::optional<ForcedCall> forced_call(ToolFormat format,
                                      const std::vector<ToolFunction>& functions);

}  // namespace octet::server
