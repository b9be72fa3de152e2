// One GET over HTTP/1.1, with or without TLS. What goes wrong on the network is an outcome and
// comes back as a value: the caller decides whether to try again.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "hub/url.h"

namespace octet::hub {

struct Answer {
  int status = 0;                              // 0: no answer came
  std::map<std::string, std::string> headers;  // names in lower case
  std::string failure;     // why the answer or its body is not whole; empty where it is
  bool permanent = false;  // another attempt would fail the same way

  std::string header(const std::string& name) const {
    const auto it = headers.find(name);
    return it == headers.end() ? "" : it->second;
  }
};

struct HttpOptions {
  std::string ca_file;            // certificates to trust; "" = the system's
  std::chrono::seconds idle{30};  // without a byte
};

using Headers = std::vector<std::pair<std::string, std::string>>;

// Sends the request, calls `wants_body` once the head has come, and if it says so, `body` with each
// part. What these two throw ends the request and is thrown on. Redirects are the caller's.
Answer http_get(const Url& url, const Headers& headers, const HttpOptions& options,
                const std::function<bool(const Answer&)>& wants_body,
                const std::function<void(std::span<const char>)>& body);

}  // namespace octet::hub
