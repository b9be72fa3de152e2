// Llama 3.1 to 3.3: an answer that is nothing but {"name": "f", "parameters": {..}}, or several
// separated by ';', after <|python_tag|> or without it.
//
// Such an answer has no mark of its own, so a JSON object is a call only if it names a function of
// the request; any other is content.
#include "server/tools/formats.h"

namespace octet::server {
namespace {

constexpr std::string_view kTag = "<|python_tag|>";

class Llama3Parser final : public ToolParser {
 public:
  explicit Llama3Parser(std::vector<std::string> names) : names_(std::move(names)) {}

 private:
  // Once there is content, all is.
  size_t find(std::string_view text, bool) const override { return only_calls() ? 0 : text.size(); }

  Reading read(std::string_view text, bool ended) override {
    size_t at = skip_space(text, 0);
    if (calls() > 0) {  // the next one comes behind a separator
      if (at == text.size()) return ended ? content(at) : unfinished();
      if (text[at] != ';') return content(text.size());
      at = skip_space(text, at + 1);
    }
    const Stands tag = stands(text, at, kTag, ended);
    if (tag == Stands::unknown) return unfinished();
    if (tag == Stands::yes) at = skip_space(text, at + kTag.size());
    if (at == text.size() && !ended) return unfinished();
    if (at == text.size() || text[at] != '{') return content(text.size());
    CallOpening opening = call_opening(text.substr(at));
    if (opening.is == CallOpening::Is::unknown && !ended) return unfinished();
    if (opening.is == CallOpening::Is::yes) {
      if (!offered(opening.name)) return content(text.size());
      return begun(at + opening.bytes, std::move(opening.name));
    }
    const size_t end = object_end(text, at);
    if (end == text.npos) return ended ? content(text.size()) : unfinished();
    std::optional<ToolCall> call = tool_call_of(text.substr(at, end - at));
    if (!call || !offered(call->name)) return content(text.size());
    return a_call(end, std::move(*call));
  }

  std::optional<size_t> close(std::string_view text, bool ended) override {
    return call_rest(text, ended);
  }

  bool offered(const std::string& name) const {
    return std::ranges::find(names_, name) != names_.end();
  }

  std::vector<std::string> names_;
};

}  // namespace

std::unique_ptr<ToolParser> make_llama3_parser(std::vector<std::string> names) {
  return std::make_unique<Llama3Parser>(std::move(names));
}

}  // namespace octet::server
