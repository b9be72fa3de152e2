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
    CallOpening opening = call_opening(text.substr(begin));
    if (opening.is == CallOpening::Is::unknown && !ended) return unfinished();
    if (opening.is == CallOpening::Is::yes) {
      return begun(begin + opening.bytes, std::move(opening.name));
    }
    const size_t end = object_end(text, begin);
    if (end == text.npos) return ended ? none : unfinished();
    std::optional<ToolCall> call = tool_call_of(text.substr(begin, end - begin));
    if (!call) return none;
    const std::optional<size_t> close = closing(text.substr(end), ended);
    return close ? a_call(end + *close, std::move(*call)) : unfinished();
  }

  std::optional<size_t> close(std::string_view text, bool ended) override {
    const std::optional<size_t> rest = call_rest(text, ended);
    if (!rest) return std::nullopt;
    const std::optional<size_t> mark = closing(text.substr(*rest), ended);
    return mark ? std::optional(*rest + *mark) : std::nullopt;
  }

  // Bytes of the closing mark, which may be missing: it may be what stopped the model.
  static std::optional<size_t> closing(std::string_view text, bool ended) {
    const size_t at = skip_space(text, 0);
    switch (stands(text, at, kClose, ended)) {
      case Stands::unknown:
        return std::nullopt;
      case Stands::yes:
        return at + kClose.size();
      case Stands::no:
        break;
    }
    return 0;
  }
};

}  // namespace

std::unique_ptr<ToolParser> make_hermes_parser(std::vector<std::string>) {
  return std::make_unique<HermesParser>();
}

}  // namespace octet::server
