// Hermes 2 and 3, Qwen 2.5 and 3: <tool_call>\n{"name": "f", "arguments": {..}}\n</tool_call>.
#include "server/tools/formats.h"

namespace octet::server {
namespace {

constexpr std::string_view kOpen = "<tool_call>", kClose = "</tool_call>";

class HermesParser final : public ToolParser {
  size_t find(std::string_view text, bool ended) const override {
    return find_mark(text, {kOpen}, ended);
  }

  Reading read(std::string_view text, bool ended) override {
    switch (stands(text, 0, kOpen, ended)) {
      case Stands::unknown:
        return unfinished();
      case Stands::no:
        return content(text.size());
      case Stands::yes:
        break;
    }
    const Reading none = content(kOpen.size());
    const size_t begin = skip_space(text, kOpen.size());
    if (begin == text.size()) return ended ? none : unfinished();
    if (text[begin] != '{') return none;
    const size_t end = object_end(text, begin);
    if (end == text.npos) return ended ? none : unfinished();
    std::optional<ToolCall> call = tool_call_of(text.substr(begin, end - begin));
    if (!call) return none;
    // The closing mark may be missing: it may be what stopped the model.
    const size_t close = skip_space(text, end);
    switch (stands(text, close, kClose, ended)) {
      case Stands::unknown:
        return unfinished();
      case Stands::yes:
        return a_call(close + kClose.size(), std::move(*call));
      case Stands::no:
        break;
    }
    return a_call(end, std::move(*call));
  }
};

}  // namespace

std::unique_ptr<ToolParser> make_hermes_parser(std::vector<std::string>) {
  return std::make_unique<HermesParser>();
}

}  // namespace octet::server
