// Which model it is: one answer for request logs, answers that are taken up again and calibrations.
#pragma once

#include <string>

namespace octet::model {

// 16 hexadecimal digits of the model's configuration, tokenizer, chat template and weights, all
// files whole: one value that differs gives others. Equal for copies, under whatever folder's name;
// other shards of the same tensors are another model. `path` is a folder in Hugging Face layout, a
// GGUF file, or a config.json alone (random weights). Reads every byte once, at the pace of the
// disk or, of what is cached, of one core (docs/PERFORMANCE.md). Throws Error for what cannot be
// read.
std::string identity_of(const std::string& path);

}  // namespace octet::model
