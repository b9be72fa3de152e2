// GET /metrics: what the server, its engine and its FP8 cache do, for Prometheus.
#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <tuple>

#include "engine/engine.h"
#include "engine/metrics.h"
#include "server/http.h"

namespace octet::server {

struct MetricsOptions {
  std::string model_name;
  bool vllm_names = true;  // each number of which vLLM has one by vLLM's name, too
  // What runs, and what is off, and why: {"chat", "off: there is no template"}.
  std::vector<std::pair<std::string_view, std::string>> facts;
};

// Counts on the event loop; requests are observed on the engine's thread.
class Metrics {
 public:
  Metrics(const engine::Engine& engine, MetricsOptions options);

  engine::RequestMetrics requests;

  // A request was answered. `handler` is a path of ours, `status` 0 where the client went away
  // before there was one.
  void count_http(const std::string& handler, const std::string& method, int status,
                  double seconds);

  // All of it, as text. Reads published numbers only: it never waits for work.
  std::string text() const;

 private:
  const engine::Engine& engine_;
  MetricsOptions options_;
  std::map<std::tuple<std::string, std::string, std::string>, uint64_t> http_requests_;
  std::map<std::string, std::unique_ptr<engine::Histogram>> http_seconds_;
};

// Passes everything on, and remembers the status.
class StatusResponder : public Responder {
 public:
  explicit StatusResponder(Responder& inner) : inner_(inner) {}
  int status() const { return status_; }

  void header(std::string name, std::string value) override {
    inner_.header(std::move(name), std::move(value));
  }
  boost::asio::awaitable<void> send(int status, std::string body,
                                    std::string_view content_type) override {
    status_ = status;
    return inner_.send(status, std::move(body), content_type);
  }
  boost::asio::awaitable<void> start_stream(std::string_view content_type) override {
    status_ = 200;
    return inner_.start_stream(content_type);
  }
  boost::asio::awaitable<void> write(std::string data) override {
    return inner_.write(std::move(data));
  }
  boost::asio::awaitable<void> finish() override { return inner_.finish(); }
  bool started() const override { return inner_.started(); }
  std::shared_ptr<void> watch(std::function<void()> gone) override {
    return inner_.watch(std::move(gone));
  }

 private:
  Responder& inner_;
  int status_ = 0;
};

}  // namespace octet::server
