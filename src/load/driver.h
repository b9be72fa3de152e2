// Sends requests to a server when they are due, and times the answers. One thread, any number of
// streams.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/json.h"
#include "hub/url.h"
#include "load/http_client.h"
#include "load/live.h"
#include "load/request.h"
#include "load/wire.h"

namespace octet::load {

// A server and how it is asked.
struct Target {
  hub::Url base;         // without the endpoint
  std::string endpoint;  // "/v1/completions"
  Headers headers;
  std::string ca_file;
  double timeout_s = 600;  // of one request, from sending to its end
  BodyOptions body;
};

// "http://host:8000" + "/v1/completions". An address that ends with /v1 may be given, too.
std::string target_path(const hub::Url& base, std::string_view endpoint);

struct RunPlan {
  std::span<const LoadRequest> requests;
  std::vector<double> arrivals;  // one a request, ascending; empty = all at once
  int64_t max_concurrency = 0;   // 0 = no limit
};

// Connections are kept from one call to the next. One thread at a time.
class Driver {
 public:
  explicit Driver(Target target);
  ~Driver();
  Driver(Driver&&) noexcept;

  const Target& target() const { return target_; }

  // Asked some twenty times a second while anything runs. Once it says yes, what runs ends at once,
  // and so does all that is asked for after that.
  void set_stop(std::function<bool()> stop) { stop_ = std::move(stop); }
  bool stopped() const { return stopped_; }

  // Sends all, and waits for all. What fails is an outcome. `live` is told of every event.
  RunResult run(const RunPlan& plan, Live& live);

  // One request alone.
  Outcome run_one(const LoadRequest& request);

  struct Plain {
    HttpAnswer answer;
    std::string body;
  };
  // A GET, or a POST of `body`, of `path` of the server. Without `timeout_s` it may take 30 s, and
  // no longer than a request may.
  Plain call(const std::string& path, const std::string& body = "",
             std::optional<double> timeout_s = std::nullopt);

  // The first model that /v1/models lists. Error that says what to do where the server does not
  // answer, or does not answer so; waits up to `wait_s` for one that is still starting.
  std::string first_model(double wait_s);
  void set_model(std::string name) { target_.body.model = std::move(name); }

 private:
  // Runs what was spawned to its end, or until it is stopped; rethrows what one of them has thrown.
  // In both cases all others, and all connections, are gone.
  void finish(std::exception_ptr& thrown);

  Target target_;
  std::function<bool()> stop_;
  bool stopped_ = false;
  std::unique_ptr<boost::asio::io_context> io_;
  std::unique_ptr<HttpClient> client_;
};

}  // namespace octet::load
