// Which model, computed how, gave an answer: so that answers are taken up again only for the same.
#pragma once

#include <string>

#include "cli/open_model.h"

namespace octet::cli {

// model::identity_of its files; of random weights, of their shape and seed.
std::string identity_of(const ModelOptions& model);

// 16 hexadecimal digits of the model's identity, of all options that change what it computes, and
// of Octet's version.
std::string fingerprint_of(const ModelOptions& model, const BackendOptions& device);

}  // namespace octet::cli
