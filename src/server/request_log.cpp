#include "server/request_log.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <boost/asio/post.hpp>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <utility>

#include "base/log.h"

namespace octet::server {

namespace asio = boost::asio;

BoundedLog::BoundedLog(std::string path, int64_t most_bytes)
    : path_(std::move(path)), most_(most_bytes) {
  open();
  if (fd_ >= 0) return;
  throw Error({.what = "the request log cannot be written",
               .where = path_,
               .value = std::strerror(errno),
               .fix = "choose another --request-log"});
}

BoundedLog::~BoundedLog() {
  if (fd_ >= 0) ::close(fd_);
}

void BoundedLog::open() {
  fd_ = ::open(path_.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, S_IRUSR | S_IWUSR);
  struct stat status = {};
  if (fd_ >= 0 && ::fstat(fd_, &status) == 0) size_ = status.st_size;
  if (size_ == 0) return;
  // A write that was cut (a full disk, a loss of power) must not take the next line with it.
  std::ifstream end(path_, std::ios::binary);
  end.seekg(-1, std::ios::end);
  if (end.get() != '\n' && fd_ >= 0 && ::write(fd_, "\n", 1) == 1) ++size_;
}

void BoundedLog::write(std::string line) {
  line += '\n';
  const auto length = static_cast<int64_t>(line.size());
  if (length > most_ / 2) {
    log::warning("request log: a line of {} bytes is left out; --request-log-bytes allows {}",
                 length, most_ / 2);
    return;
  }
  if (fd_ >= 0 && size_ > 0 && size_ + length > most_ / 2) {
    ::close(std::exchange(fd_, -1));
    std::rename(path_.c_str(), (path_ + ".1").c_str());
    open();
  }
  if (fd_ < 0) return;
  for (size_t at = 0; at < line.size();) {
    const ssize_t count = ::write(fd_, line.data() + at, line.size() - at);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) {
      log::error("request log: {}: {}; no more is written", path_, std::strerror(errno));
      ::close(std::exchange(fd_, -1));
      return;
    }
    at += static_cast<size_t>(count);
  }
  size_ += length;
}

namespace {

OrderedJson sampling_json(const engine::Sampling& sampling) {
  OrderedJson json;
  json["temperature"] = sampling.temperature;
  json["top_k"] = sampling.top_k;
  json["top_p"] = sampling.top_p;
  json["min_p"] = sampling.min_p;
  json["seed"] = sampling.seed;
  json["logprobs"] = sampling.logprobs;
  json["repetition_penalty"] = sampling.repetition_penalty;
  json["presence_penalty"] = sampling.presence_penalty;
  json["frequency_penalty"] = sampling.frequency_penalty;
  json["logit_bias"] = sampling.logit_bias;
  json["allowed"] = sampling.allowed;
  json["bad_words"] = sampling.bad_words;
  return json;
}

}  // namespace

std::string log_line(const LoggedRequest& request, const std::string& model_hash) {
  OrderedJson line;
  line["version"] = 1;
  line["id"] = request.envelope.id;
  line["path"] = request.path;
  line["created"] = request.envelope.created;
  line["model"] = request.envelope.model;
  if (!model_hash.empty()) line["model_hash"] = model_hash;
  line["body"] = parse_json<OrderedJson>(request.body, "logged request");
  line["body"].erase("cache_salt");  // what a tenant keeps to itself
  line["prompts"] = OrderedJson::array();
  for (const auto& prompt : request.prompts) line["prompts"].push_back(prompt->ids);
  line["n"] = request.n;
  line["sampling"] = sampling_json(request.generation.sampling);
  const engine::GenRequest& generation = request.generation;
  OrderedJson& rest = line["generation"];
  rest["max_tokens"] =
      generation.max_tokens ? OrderedJson(*generation.max_tokens) : OrderedJson(nullptr);
  rest["min_tokens"] = generation.min_tokens;
  rest["stop_ids"] = generation.stop_ids;
  rest["ignore_eos"] = generation.ignore_eos;
  line["choices"] = OrderedJson::array();
  for (const LoggedChoice& choice : request.choices) {
    OrderedJson part;
    part["index"] = line["choices"].size();
    part["seed"] = choice.seed;
    part["output_ids"] = choice.output_ids;
    part["finish_reason"] = choice.finish_reason;
    line["choices"].push_back(std::move(part));
  }
  return dump_json(line);
}

void RequestLog::add(LoggedRequest request) {
  asio::post(worker_, [&file = file_, &hash = model_hash_, request = std::move(request)] {
    try {
      file.write(log_line(request, hash));
    } catch (const std::exception& error) {
      log::error("request log: {}", error.what());
    }
  });
}

}  // namespace octet::server
