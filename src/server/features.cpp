#include "server/features.h"

#include <fmt/format.h>

namespace octet::server {

std::vector<Feature> features_in_force(const engine::Engine& engine, const ServedText& text) {
  const auto on_or = [](bool on, const std::string& why_not) {
    return on ? "on" : "off: " + why_not;
  };
  const sched::Config& scheduling = engine.scheduling();
  return {{"run_as", text.run_as},
          {"kv_cache_dtype", std::string(name_of(engine.kv_type()))},
          {"kv_scales", text.kv_scales},
          {"max_model_len", std::to_string(engine.max_model_len())},
          {"prefix_caching", on_or(scheduling.enable_prefix_caching, "as asked")},
          {"chunked_prefill", "on"},  // there is no other way to plan a prompt
          {"schedule_policy", to_string(scheduling.policy)},
          {"chat", on_or(text.chat, text.why_no_chat)},
          {"tool_calls",
           on_or(text.tools.has_value(),
                 text.chat ? "the template has them in no form that is known" : "no chat")},
          {"structured_output", on_or(text.grammars, text.why_no_grammar)}};
}

std::string to_string(const std::vector<Feature>& features) {
  std::string line;
  for (const auto& [name, state] : features) {
    line += fmt::format("{}{}: {}", line.empty() ? "in force: " : "; ", name,
                        state.substr(0, state.find('\n')));
  }
  return line;
}

}  // namespace octet::server
