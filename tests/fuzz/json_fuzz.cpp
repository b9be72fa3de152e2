// parse_json on any bytes: an Error or a value, whose dump parses again to the same value.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "base/error.h"
#include "base/json.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    const octet::Json json = octet::parse_json(text, "input");
    const std::string dumped = octet::dump_json(json);
    if (octet::dump_json(octet::parse_json(dumped, "dump")) != dumped) std::abort();
  } catch (const octet::Error&) {
  }
  return 0;
}
