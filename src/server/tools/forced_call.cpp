#include "server/tools/forced_call.h"

#include <fmt/format.h>

#include <utility>

#include "base/error.h"
#include "text/schema_refs.h"

namespace octet::server {
namespace {

// The schema of what the function takes, every $ref of which means a place in this schema. What
// they lead to goes to the root of the whole, under names of its own for each function.
OrderedJson parameters_of(const ToolFunction& function, size_t index, OrderedJson& definitions) {
  if (!function.parameters.is_object()) return {{"type", "object"}};
  OrderedJson schema = text::with_plain_refs(
      function.parameters, fmt::format("the parameters of '{}'", shortened(function.name, 80)),
      fmt::format("tool{}_", index));
  if (schema.contains("$defs")) {
    definitions.update(schema["$defs"]);
    schema.erase("$defs");
  }
  return schema;
}

// {"name": the function's, `arguments_key`: what it takes}
OrderedJson call_schema(const ToolFunction& function, size_t index, const char* arguments_key,
                        OrderedJson& definitions) {
  OrderedJson properties;
  properties["name"] = {{"const", function.name}};
  properties[arguments_key] = parameters_of(function, index, definitions);
  OrderedJson schema;
  schema["type"] = "object";
  schema["properties"] = std::move(properties);
  schema["required"] = {"name", arguments_key};
  schema["additionalProperties"] = false;
  return schema;
}

OrderedJson any_call(const std::vector<ToolFunction>& functions, const char* arguments_key) {
  OrderedJson definitions = OrderedJson::object();
  OrderedJson schema;
  if (functions.size() == 1) {
    schema = call_schema(functions[0], 0, arguments_key, definitions);
  } else {
    schema["anyOf"] = OrderedJson::array();
    for (size_t i = 0; i < functions.size(); ++i) {
      schema["anyOf"].push_back(call_schema(functions[i], i, arguments_key, definitions));
    }
  }
  if (!definitions.empty()) schema["$defs"] = std::move(definitions);
  return schema;
}

}  // namespace

std::optional<ForcedCall> forced_call(ToolFormat format,
                                      const std::vector<ToolFunction>& functions) {
  switch (format) {
    case ToolFormat::hermes:
      return ForcedCall{any_call(functions, "arguments"), "<tool_call>\n", "\n</tool_call>"};
    case ToolFormat::llama3_json:
      return ForcedCall{any_call(functions, "parameters"), "", ""};
    case ToolFormat::deepseek_v3:
      break;
  }
  if (functions.size() != 1) return std::nullopt;
  OrderedJson definitions = OrderedJson::object();
  OrderedJson schema = parameters_of(functions[0], 0, definitions);
  if (!definitions.empty()) schema["$defs"] = std::move(definitions);
  return ForcedCall{std::move(schema),
                    "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>" +
                        functions[0].name + "\n```json\n",
                    "\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>"};
}

}  // namespace octet::server
