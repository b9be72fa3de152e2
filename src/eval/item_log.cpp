#include "eval/item_log.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>

#include "base/error.h"
#include "base/mapped_file.h"

namespace octet::eval {
namespace {

Error cannot(const char* what, const std::filesystem::path& path) {
  return Error({.what = what,
                .where = path.string(),
                .value = std::strerror(errno),
                .accepted = "a file that can be read and appended to"});
}

}  // namespace

ItemLog::ItemLog(const std::filesystem::path& path) : path_(path) {
  const std::string text = std::filesystem::exists(path) ? read_text(path) : "";
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    try {
      const std::string name = path.string();
      const Json line = parse_json(std::string_view(text).substr(at, end - at), name);
      const JsonView view(line, name);
      const ItemKey key{view.get<std::string>("model"), view.get<std::string>("task"),
                        view.get<std::string>("item"), view.get<std::string>("input")};
      answers_[key] = view.at("answer").json();
    } catch (const Error&) {
      ++broken_;
    }
    at = end + 1;
  }
  // A killed run may have left less than one line.
  constexpr std::string_view begin = "{\"model\":";
  const bool begun = text.find('\n') == text.npos &&
                     (text.starts_with(begin) || begin.starts_with(std::string_view(text)));
  if (broken_ > 0 && answers_.empty() && !begun) {
    throw Error({.what = "this is no file of answers",
                 .where = path.string(),
                 .value = fmt::format("{} lines of another form", broken_),
                 .accepted = "a file that an earlier run wrote, or a new one"});
  }
  file_.reset(std::fopen(path.c_str(), "ab"));
  if (!file_) throw cannot("cannot write the answers", path);
  // What a killed run left of a line must not swallow the next one.
  if (!text.empty() && text.back() != '\n') std::fputc('\n', file_.get());
}

const Json* ItemLog::find(const ItemKey& key) const {
  const auto found = answers_.find(key);
  return found == answers_.end() ? nullptr : &found->second;
}

void ItemLog::add(const ItemKey& key, const Json& answer) {
  if (!file_) return;
  const OrderedJson line = {{"model", key.model},
                            {"task", key.task},
                            {"item", key.item},
                            {"input", key.input},
                            {"answer", answer}};
  const std::string text = dump_json(line) + "\n";
  if (std::fwrite(text.data(), 1, text.size(), file_.get()) != text.size() ||
      std::fflush(file_.get()) != 0) {
    throw cannot("cannot write the answers", path_);
  }
  answers_[key] = answer;
}

}  // namespace octet::eval
