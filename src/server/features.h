// What a server does of what may be asked of it: in the log of its start, and as labels of
// octet_config_info. Nothing is turned off for the sake of something else without being here.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "server/server.h"

namespace octet::server {

// A feature and its state: "on", "off: " with the reason, or a value.
using Feature = std::pair<std::string_view, std::string>;

// Read from what runs, not from what was asked for.
std::vector<Feature> features_in_force(const engine::Engine& engine, const ServedText& text);

// In a line; of a reason its first line.
std::string to_string(const std::vector<Feature>& features);

}  // namespace octet::server
