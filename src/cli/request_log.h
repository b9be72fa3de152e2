// The lines of a server's request log (docs/SERVING.md), as `octet replay` reads them.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "engine/engine.h"

namespace octet::cli {

struct LoggedChoice {
  int64_t index = 0;
  std::vector<int32_t> prompt, output;
  std::string finish_reason;
  engine::GenRequest request;  // gives `output`, and ends where it ends
};

struct LoggedRequest {
  std::string id, path, where;  // where: "FILE:LINE"
  std::string model_hash;       // of the model that answered (fingerprint.h); "" = not known
  // Not empty: why it cannot be computed again from its line alone.
  std::string not_replayable;
  std::vector<LoggedChoice> choices;
};

// One line. Error, naming the place, where it is no line of version 1. What limits the output of a
// choice (a stop string, a client that went) is not in it; but how much came is, and that much is
// asked for.
LoggedRequest parse_logged_request(const JsonView& line);

// The lines of `path`, or only the one whose id is `id`: Error if there is none. A last line that
// was cut while it was written is left out with a warning.
std::vector<LoggedRequest> read_request_log(const std::filesystem::path& path,
                                            const std::string& id);

}  // namespace octet::cli
