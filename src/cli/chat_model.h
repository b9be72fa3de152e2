// A model's chat template, for the verbs that chat.
#pragma once

#include <optional>
#include <string>

#include "cli/open_model.h"
#include "text/chat_template.h"

namespace octet::cli {

// The row of --chat-template.
void add_chat_row(OptionTable& table, std::string* file);

// What the model's files say about chat; with a `file`, its template in place of theirs. Throws
// Error where that cannot be read.
text::ChatFiles chat_files(const std::string& model_path, const std::string& file);

// The template of `file`, or else the model's. Throws Error: there is none, or it is wrong. Call it
// before threads and gigabytes: it forks (text/sandbox.h).
text::ChatTemplate open_chat(const OpenModel& open, const std::string& model_path,
                             const std::string& file);

}  // namespace octet::cli
