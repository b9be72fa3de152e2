// Which model, computed how, gave an answer: so that answers are taken up again only for the same.
#pragma once

#include <string>

#include "cli/open_model.h"

namespace octet::cli {

// 16 hexadecimal digits of the model's files and of all options that change what it computes. The
// configuration is read whole, of each weight file its size and a hundred samples of 4 KiB: two
// checkpoints of one architecture differ in nearly all of them.
std::string fingerprint_of(const ModelOptions& model, const BackendOptions& device);

}  // namespace octet::cli
