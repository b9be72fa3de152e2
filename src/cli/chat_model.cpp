#include "cli/chat_model.h"

#include <utility>

#include "base/mapped_file.h"
#include "model/gguf/checkpoint.h"

namespace octet::cli {

void add_chat_row(OptionTable& table, std::string* file) {
  table.add("--chat-template", file, "a Jinja file that takes the place of the model's template",
            {.metavar = "FILE"});
}

text::ChatFiles chat_files(const std::string& model_path, const std::string& file) {
  text::ChatFiles files;
  if (model::is_gguf(model_path)) {
    const auto texts = model::gguf_tokenizer(model_path);
    if (const auto config = texts.find("tokenizer_config.json"); config != texts.end()) {
      files = text::parse_chat_config(config->second, model_path);
    }
  } else {
    files = text::read_chat_files(model_path);
  }
  if (!file.empty()) files.templates = {{"default", read_text(file), file}};
  return files;
}

text::ChatTemplate open_chat(const OpenModel& open, const std::string& model_path,
                             const std::string& file) {
  return {chat_files(model_path, file), open.tokenizer()};
}

}  // namespace octet::cli
