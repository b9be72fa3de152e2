// The request log: what is needed to compute an answer again, a line of JSON for each request
// (docs/SERVING.md, "The request log").
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "server/openai.h"
#include "server/prompt.h"

namespace octet::server {

// A file of bounded size: at half of `most_bytes` it becomes "PATH.1", in place of the one before,
// and a new one begins. Readable for its owner alone. For one thread at a time.
class BoundedLog {
 public:
  // Appends to what is there. Throws Error if the file cannot be written.
  BoundedLog(std::string path, int64_t most_bytes);
  ~BoundedLog();
  BoundedLog(const BoundedLog&) = delete;
  BoundedLog& operator=(const BoundedLog&) = delete;

  // Adds a line and its end. One that is longer than half of the bound is left out with a warning;
  // if the disk fails, so are all that follow.
  void write(std::string line);

 private:
  void open();
  std::string path_;
  int64_t most_, size_ = 0;
  int fd_ = -1;
};

// One choice of a request that has ended.
struct LoggedChoice {
  uint64_t seed = 0;
  std::vector<int32_t> output_ids;
  std::string finish_reason;
};

// A request that has ended.
struct LoggedRequest {
  std::string path, body;
  Envelope envelope;
  int32_t n = 1;  // choices of each prompt
  engine::GenRequest generation;
  std::vector<std::shared_ptr<const EncodedPrompt>> prompts;
  std::vector<LoggedChoice> choices;
};

// `model_hash` tells models apart that have the same name; "" = not known.
std::string log_line(const LoggedRequest& request, const std::string& model_hash);

// Writes lines on another thread, in order.
class RequestLog {
 public:
  // `worker` runs one job at a time. All outlive this, and what it was given.
  RequestLog(BoundedLog& file, boost::asio::any_io_executor worker, std::string model_hash)
      : file_(file), worker_(std::move(worker)), model_hash_(std::move(model_hash)) {}
  void add(LoggedRequest request);

 private:
  BoundedLog& file_;
  boost::asio::any_io_executor worker_;
  const std::string model_hash_;
};

}  // namespace octet::server
