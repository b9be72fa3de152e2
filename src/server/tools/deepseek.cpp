// DeepSeek V3 and R1:
//   <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>NAME
//   ```json
//   {..}
//   ```<｜tool▁call▁end｜> .. <｜tool▁calls▁end｜>
// and V3.1, whose calls are <｜tool▁call▁begin｜>NAME<｜tool▁sep｜>{..}<｜tool▁call▁end｜>.
#include "server/tools/formats.h"

namespace octet::server {
namespace {

constexpr std::string_view kCalls = "<｜tool▁calls▁begin｜>", kCallsEnd = "<｜tool▁calls▁end｜>";
constexpr std::string_view kCall = "<｜tool▁call▁begin｜>", kCallEnd = "<｜tool▁call▁end｜>";
constexpr std::string_view kSep = "<｜tool▁sep｜>", kFence = "```", kJson = "```json";
constexpr size_t kMostName = 256;  // bytes between the marks

// Without the white space around it, which a model may write beside its marks.
std::string_view trimmed(std::string_view text) {
  constexpr std::string_view space = " \t\r\n";
  const size_t begin = text.find_first_not_of(space);
  if (begin == text.npos) return {};
  return text.substr(begin, text.find_last_not_of(space) + 1 - begin);
}

class DeepseekParser final : public ToolParser {
  size_t find(std::string_view text, bool ended) const override {
    return find_mark(text, {kCalls, kCall}, ended);
  }

  Reading read(std::string_view text, bool ended) override {
    const Stands outer = stands(text, 0, kCalls, ended), inner = stands(text, 0, kCall, ended);
    if (outer != Stands::yes && inner != Stands::yes) {
      const bool open = outer == Stands::unknown || inner == Stands::unknown;
      return open ? unfinished() : content(text.size());
    }
    const Reading none = content(outer == Stands::yes ? kCalls.size() : kCall.size());
    size_t at = outer == Stands::yes ? skip_space(text, kCalls.size()) : 0;
    // Moves behind a mark; `found` is what to say where it does not stand.
    Reading found;
    const auto pass = [&](std::string_view mark) {
      const Stands here = stands(text, at, mark, ended);
      found = here == Stands::unknown ? unfinished() : none;
      if (here == Stands::yes) at += mark.size();
      return here == Stands::yes;
    };
    if (!pass(kCall)) return found;

    const size_t sep = text.substr(0, at + kMostName + kSep.size()).find(kSep, at);
    if (sep == text.npos) {
      return ended || text.size() > at + kMostName + kSep.size() ? none : unfinished();
    }
    std::string_view name = trimmed(text.substr(at, sep - at));
    at = sep + kSep.size();
    const bool fenced = name == "function";
    if (fenced) {
      const size_t line = text.substr(0, at + kMostName).find('\n', at);
      if (line == text.npos) {
        return ended || text.size() >= at + kMostName ? none : unfinished();
      }
      name = trimmed(text.substr(at, line - at));
      at = skip_space(text, line);
      if (!pass(kJson)) return found;
    }
    at = skip_space(text, at);
    if (at == text.size() && !ended) return unfinished();
    if (at == text.size() || text[at] != '{' || name.empty()) return none;
    fenced_ = fenced;
    return begun(at, std::string(name));
  }

  // What closes a call goes with it, as far as it is there.
  std::optional<size_t> close(std::string_view text, bool ended) override {
    size_t end = 0;
    for (const std::string_view mark : {kFence, kCallEnd, kCallsEnd}) {
      if (mark == kFence && !fenced_) continue;
      const size_t at = skip_space(text, end);
      const Stands found = stands(text, at, mark, ended);
      if (found == Stands::unknown) return std::nullopt;
      if (found == Stands::yes) end = at + mark.size();
    }
    return end;
  }

  bool fenced_ = false;  // the arguments of the last call
};

}  // namespace

std::unique_ptr<ToolParser> make_deepseek_parser(std::vector<std::string>) {
  return std::make_unique<DeepseekParser>();
}

}  // namespace octet::server
