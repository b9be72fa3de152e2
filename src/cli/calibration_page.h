// A calibration as one page.
#pragma once

#include <string>

#include "offline/calibration.h"

namespace octet::cli {

// A plot of each kind of input and of the cache over the layers: the largest magnitude and two
// percentiles, of experts the largest of all.
std::string html_of(const offline::Calibration& calibration);

}  // namespace octet::cli
