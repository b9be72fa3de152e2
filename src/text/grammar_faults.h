// What the engine of structured output says of a source that it cannot read, in this project's
// words.
#pragma once

#include <string>
#include <string_view>

namespace octet::text {

// "position 4: a repeat of nothing": the place, where the engine names one, and what is there. One
// line, whatever the engine says; what it says is never passed on.
std::string fault_in_own_words(std::string_view said);

}  // namespace octet::text
