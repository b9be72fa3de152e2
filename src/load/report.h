// A load test as one HTML page: no script, nothing from outside, dark or light as the reader's
// system is, and readable on a phone.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "load/layers.h"

namespace octet::load {

struct Report {
  std::string title;
  std::vector<std::pair<std::string, std::string>> facts;  // server, model, date, command, ...
  std::vector<Layer> layers;
  Goodput goodput;
};

std::string html_of(const Report& report);

}  // namespace octet::load
