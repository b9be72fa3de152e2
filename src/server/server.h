// The OpenAI-compatible server: routes over an engine.
#pragma once

#include <functional>
#include <string>

#include "engine/engine.h"
#include "server/http.h"
#include "server/openai.h"
#include "text/tokenizer.h"

namespace octet::server {

struct ServerOptions {
  std::string host = "127.0.0.1";
  int port = 8000;
  std::string served_name;        // of the model; "" = its directory's name
  std::string root;               // where the model lies, shown by /v1/models
  std::string api_key;            // "" = none; guards everything under /v1
  double health_timeout_s = 120;  // /health fails if a step takes longer
  HttpLimits limits;
};

// Serves until SIGINT, SIGTERM or a fault of the engine; 0 or 1, the exit code. `ready(port)` is
// called once connections are accepted. Throws Error if the address cannot be used.
int serve(const ServerOptions& options, engine::Engine& engine, const text::Tokenizer& tokenizer,
          const std::function<void(int port)>& ready);

}  // namespace octet::server
