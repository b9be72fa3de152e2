// What a request says of its tools: in which format calls are looked for, and whether one must
// come. Internal to the server.
#pragma once

#include "server/openai.h"

namespace octet::server {

// Reads tool_choice of a chat that offers `tools` (null: none); `json` is the body with its keys in
// their order. Calls are looked for in the format of the model; one that must come has the
// simplest, where the model has none. Throws ApiError naming the field.
void parse_tools(const JsonView& body, const OrderedJson& json, const ServedModel& served,
                 const OrderedJson& tools, CompletionRequest& request);

}  // namespace octet::server
