// The files that a Hugging Face directory has beside the weights, made from a GGUF file's metadata:
// a GGUF is read as the checkpoint that it was converted from, so that there is one reader of
// configurations and one of tokenizers, and `octet convert` writes what others open, too.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "model/gguf/file.h"

namespace octet::model::gguf {

// config.json. Throws Error for an architecture, or a feature of one, that has no counterpart.
std::string config_json(const File& file);

// What config_json() took for granted and `rope_theta`, the base in force, does not overrule: one
// sentence each.
std::vector<std::string> config_notes(const File& file, double rope_theta);

// tokenizer.json and tokenizer_config.json, the chat template in it. Throws Error for tokenizers
// that cannot be expressed. Empty if the file holds no tokenizer.
std::map<std::string, std::string> tokenizer_files(const Metadata& metadata);

// The name in config.json of the architecture, such as "llama"; Error if Octet does not know it.
std::string architecture_of(const Metadata& metadata);

}  // namespace octet::model::gguf
