#include "server/tool_choice.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "server/request.h"
#include "server/tools/forced_call.h"
#include "text/schema_refs.h"

namespace octet::server {
namespace {

bool has(const OrderedJson& object, const char* key) {
  return object.contains(key) && !object.at(key).is_null();
}

// The functions that a request offers.
std::vector<ToolFunction> functions_of(const OrderedJson& tools) {
  std::vector<ToolFunction> functions;
  for (size_t i = 0; i < tools.size(); ++i) {
    const OrderedJson& tool = tools[i];
    const OrderedJson& function = has(tool, "function") ? tool["function"] : tool;
    if (!function.is_object() || !has(function, "name") || !function["name"].is_string() ||
        function["name"].get_ref<const std::string&>().empty()) {
      refuse("tools",
             fmt::format("tools[{}] must be {{\"type\": \"function\", \"function\": "
                         "{{\"name\": \"..\", \"parameters\": {{..}}}}}} with a name, got {}",
                         i, shortened(dump_json(tool), 80)));
    }
    functions.push_back({function["name"].get<std::string>(),
                         has(function, "parameters") ? function["parameters"] : nullptr});
  }
  return functions;
}

// A call that is forced follows its parameters' schema, and arguments are an object.
void require_objects(const std::vector<ToolFunction>& functions) {
  for (const ToolFunction& function : functions) {
    const OrderedJson* schema = text::without_top_refs(function.parameters);
    const bool object =
        schema != nullptr &&
        (schema->is_null() ||
         (schema->is_object() && (!schema->contains("type") || (*schema)["type"] == "object")));
    if (object) continue;
    refuse(
        "tools",
        fmt::format("the parameters of '{}' must be a schema of type object, or a $ref that "
                    "leads to one in it, for a call that tool_choice forces; got {}",
                    shortened(function.name, 80), shortened(dump_json(function.parameters), 80)));
  }
}

// Those of which tool_choice wants a call: all ("required"), or the one that it names. None where
// the model may choose.
std::vector<ToolFunction> wanted_calls(const JsonView& body, const OrderedJson& json,
                                       const std::vector<ToolFunction>& functions) {
  if (!body.has("tool_choice")) return {};
  const OrderedJson& choice = json["tool_choice"];
  if (choice == "auto" || choice == "none") return {};
  if (functions.empty()) refuse("tool_choice", "tool_choice wants a call, and there are no tools");
  if (choice == "required") return functions;
  const OrderedJson* named =
      choice.is_object() && has(choice, "function") ? &choice["function"] : &choice;
  if (!named->is_object() || !has(*named, "name") || !(*named)["name"].is_string()) {
    refuse("tool_choice",
           fmt::format("tool_choice must be \"auto\", \"none\", \"required\" or {{\"type\": "
                       "\"function\", \"function\": {{\"name\": ..}}}}, got {}",
                       shortened(dump_json(choice), 80)));
  }
  const std::string name = (*named)["name"].get<std::string>();
  const auto found = std::ranges::find(functions, name, &ToolFunction::name);
  if (found == functions.end()) {
    refuse("tool_choice", fmt::format("tool_choice names '{}', which is not among the tools",
                                      shortened(name, 80)));
  }
  return {*found};
}

}  // namespace

void parse_tools(const JsonView& body, const OrderedJson& json, const ServedModel& served,
                 const OrderedJson& tools, CompletionRequest& request) {
  const std::vector<ToolFunction> functions =
      tools.is_null() ? std::vector<ToolFunction>() : functions_of(tools);
  const std::vector<ToolFunction> wanted = wanted_calls(body, json, functions);
  if (functions.empty()) return;
  request.tools = served.tools;
  for (const ToolFunction& function : functions) request.tool_names.push_back(function.name);
  if (wanted.empty()) return;
  require_objects(wanted);
  if (!request.tools) request.tools = ToolFormat::llama3_json;
  if (request.structured) {
    refuse("tool_choice",
           fmt::format("tool_choice wants a call, and {} another form of the answer; send one of "
                       "the two",
                       request.structured->field));
  }
  std::optional<ForcedCall> call = forced_call(*request.tools, wanted);
  if (!call) {
    refuse("tool_choice",
           "the format of this model's calls cannot leave the choice among several functions: name "
           "one in tool_choice");
  }
  request.names_tool = json["tool_choice"] != "required";
  request.structured = Structured{{text::GrammarSource::Kind::json_schema, dump_json(call->schema),
                                   std::move(call->before), std::move(call->after)},
                                  "tool_choice"};
}

}  // namespace octet::server
