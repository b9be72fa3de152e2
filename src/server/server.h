// The OpenAI-compatible server: routes over an engine.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "engine/microscope.h"
#include "server/http.h"
#include "server/openai.h"
#include "text/grammar.h"
#include "text/tokenizer.h"

namespace octet::server {

struct ServerOptions {
  std::string host = "127.0.0.1";
  int port = 8000;
  std::string served_name;                   // of the model; "" = its directory's name
  std::string root;                          // where the model lies, shown by /v1/models
  std::string model_hash;                    // for the request log
  std::vector<std::string> api_keys;         // any of them opens all but /health, /ping, /version
  std::vector<std::string> allowed_origins;  // of pages whose scripts may ask (CORS); "*" = all
  SamplingDefaults defaults;                 // of requests that leave a field out
  std::optional<int64_t> seed;               // of unseeded requests' seeds; unset: random
  bool force_usage = false;                  // usage ends every stream
  bool cached_usage = true;                  // usage says how much of a prompt was cached
  std::string request_log;                   // a file; "" = none is kept
  int64_t request_log_bytes = 64 << 20;
  double health_timeout_s = 120;  // /health fails if a step takes longer
  double shutdown_grace_s = 3;  // that running requests have to end after SIGTERM, SIGINT or SIGHUP
  bool vllm_metrics = true;     // /metrics by vLLM's names, too
  HttpLimits limits;
};

// What makes ids of text and text of ids.
struct ServedText {
  const text::Tokenizer& tokenizer;
  const text::ChatTemplate* chat = nullptr;  // null: the model cannot chat
  std::string why_no_chat = "this server has no chat template";
  std::string kernels = "{}";                 // JSON of /debug/kernels
  std::optional<ToolFormat> tools = {};       // how the model writes tool calls
  text::GrammarCompiler* grammars = nullptr;  // null: no structured output
  std::string why_no_grammar = "this server has no structured output";
  std::string kv_scales = "none";  // where those of the KV cache come from
  std::string run_as = {};         // arithmetic, KV cache and attention, each with its origin
};

// The model that --baseline names, and what looks at both.
struct ServedBaseline {
  engine::Microscope& microscope;
  std::string name;
};

class Server {
 public:
  // Takes the address, and accepts nobody yet: an address in use is noticed before a large model is
  // loaded. Throws Error if it cannot be used.
  explicit Server(ServerOptions options);
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  int port() const;

  // Serves until SIGINT, SIGTERM, SIGHUP, stop() or a fault of the engine; 0 or 1, the exit code.
  // `ready` is called once connections are accepted. The engine is stopped when this returns.
  //
  // On the way out running requests get the grace to end, new ones and /health are answered with
  // 503, and what has not ended then gets an error. A second signal ends the process at once.
  //
  // `baseline` may be null; nobody else uses its microscope meanwhile.
  int run(engine::Engine& engine, const ServedText& text, const std::function<void()>& ready,
          const ServedBaseline* baseline = nullptr);

  // As the first signal does; from any thread, while run() runs.
  void stop();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace octet::server
