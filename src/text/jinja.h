// Jinja, by the engine of llama.cpp. The engine has no bounds: it runs in a Sandbox alone.
#pragma once

#include <string>
#include <string_view>

namespace octet::text {

// Whether Octet was built with the engine.
bool has_jinja();

// The job of a Sandbox. `input` is a JSON object {"template": the source, "variables": an object};
// without "variables" the template is only read. Throws std::exception with what the template or
// the engine complains of.
std::string run_jinja(std::string_view input);

}  // namespace octet::text
