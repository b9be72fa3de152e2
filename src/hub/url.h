// Addresses of http and https, as far as a download needs them.
#pragma once

#include <string>
#include <string_view>

namespace octet::hub {

struct Url {
  bool tls = true;
  std::string host, port;
  std::string target = "/";  // path and query, percent-encoded

  // "https://host" or "http://host:8080": what decides who may see a token.
  std::string origin() const;
  std::string text() const { return origin() + target; }
  // 127.0.0.0/8, ::1 or localhost.
  bool is_loopback() const;
};

// Throws Error naming `where` unless `text` is an http or https address without a user or password.
Url parse_url(std::string_view text, const std::string& where);

// Where a redirect from `base` leads: `location` may be a whole address or a path. Throws Error.
Url resolve(const Url& base, std::string_view location);

// A path with all but letters, digits and "-._~/" percent-encoded.
std::string encode_path(std::string_view path);
// The reverse; a '%' that is no code stays.
std::string decode_path(std::string_view path);

}  // namespace octet::hub
