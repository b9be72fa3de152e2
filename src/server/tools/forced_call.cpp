#include "server/tools/forced_call.h"

#include <utility>

namespace octet::server {
namespace {

// The schema of what a function takes, without the definitions that it refers to: these go to the
// root of the whole, where "#/$defs/.." looks for them.
OrderedJson parameters_of(const ToolFunction& function, OrderedJson& definitions) {
  if (!function.parameters.is_object()) return {{"type", "object"}};
  OrderedJson schema = function.parameters;
  for (const char* key : {"$defs", "definitions"}) {
    if (!schema.contains(key)) continue;
    if (schema[key].is_object()) definitions[key].update(schema[key]);
    schema.erase(key);
  }
  return schema;
}

// {"name": the function's, `arguments_key`: what it takes}
OrderedJson call_schema(const ToolFunction& function, const char* arguments_key,
                        OrderedJson& definitions) {
  OrderedJson properties;
  properties["name"] = {{"const", function.name}};
  properties[arguments_key] = parameters_of(function, definitions);
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
    schema = call_schema(functions[0], arguments_key, definitions);
  } else {
    schema["anyOf"] = OrderedJson::array();
    for (const ToolFunction& function : functions) {
      schema["anyOf"].push_back(call_schema(function, arguments_key, definitions));
    }
  }
  schema.update(definitions);
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
  OrderedJson schema = parameters_of(functions[0], definitions);
  schema.update(definitions);
  return ForcedCall{std::move(schema),
                    "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>" +
                        functions[0].name + "\n```json\n",
                    "\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>"};
}

}  // namespace octet::server
