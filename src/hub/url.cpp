#include "hub/url.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"

namespace octet::hub {
namespace {

bool is_plain(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
         std::string_view("-._~").find(c) != std::string_view::npos;
}

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

}  // namespace

std::string Url::origin() const {
  const bool usual = port == (tls ? "443" : "80");
  const bool v6 = host.find(':') != host.npos;
  return fmt::format("{}://{}{}{}{}{}", tls ? "https" : "http", v6 ? "[" : "", host, v6 ? "]" : "",
                     usual ? "" : ":", usual ? "" : port);
}

bool Url::is_loopback() const {
  const bool numeric = host.find_first_not_of("0123456789.") == host.npos;
  return host == "localhost" || host == "::1" || (numeric && host.starts_with("127."));
}

Url parse_url(std::string_view text, const std::string& where) {
  const auto refuse = [&](std::string what) {
    throw Error({.what = std::move(what),
                 .where = where,
                 .value = std::string(text),
                 .accepted = "http://HOST[:PORT]/PATH or https://HOST[:PORT]/PATH"});
  };
  Url url;
  std::string_view rest = text;
  if (rest.starts_with("https://")) {
    rest.remove_prefix(8);
  } else if (rest.starts_with("http://")) {
    url.tls = false;
    rest.remove_prefix(7);
  } else {
    refuse("not an address that can be downloaded from");
  }
  const bool plain = std::ranges::all_of(text, [](char c) { return c > ' ' && c <= '~'; });
  if (!plain) refuse("an address holds characters that must be percent-encoded");
  rest = rest.substr(0, rest.find('#'));
  const size_t end = std::min(rest.find_first_of("/?"), rest.size());
  std::string_view authority = rest.substr(0, end);
  if (authority.find('@') != authority.npos) refuse("an address with a user or password");
  url.target = rest.substr(end);
  if (!url.target.starts_with('/')) url.target.insert(0, "/");
  std::string_view port;
  if (authority.starts_with('[')) {
    const size_t close = authority.find(']');
    if (close == authority.npos) refuse("an address whose host is cut off");
    url.host = authority.substr(1, close - 1);
    authority.remove_prefix(close + 1);
    if (authority.starts_with(':')) port = authority.substr(1);
  } else {
    const size_t colon = authority.find(':');
    url.host = authority.substr(0, colon);
    if (colon != authority.npos) port = authority.substr(colon + 1);
  }
  if (url.host.empty()) refuse("an address without a host");
  if (port.find_first_not_of("0123456789") != port.npos || port.size() > 5) {
    refuse("the port of an address is no number");
  }
  if (!port.empty() && std::stoi(std::string(port)) > 65535) {
    refuse("the port of an address is above 65535");
  }
  url.port = port.empty() ? (url.tls ? "443" : "80") : std::string(port);
  return url;
}

Url resolve(const Url& base, std::string_view location) {
  if (location.starts_with("//")) {
    return parse_url(fmt::format("{}:{}", base.tls ? "https" : "http", location), "a redirect");
  }
  if (location.find("://") != location.npos && !location.starts_with('/')) {
    return parse_url(location, "a redirect");
  }
  Url url = base;
  if (location.starts_with('/')) {
    url.target = location;
  } else {
    const std::string_view path = std::string_view(base.target).substr(0, base.target.find('?'));
    url.target = std::string(path.substr(0, path.rfind('/') + 1)) + std::string(location);
  }
  return parse_url(url.text(), "a redirect");
}

std::string encode_path(std::string_view path) {
  std::string out;
  for (const char c : path) {
    if (is_plain(c) || c == '/') {
      out += c;
    } else {
      out += fmt::format("%{:02X}", static_cast<unsigned char>(c));
    }
  }
  return out;
}

std::string decode_path(std::string_view path) {
  std::string out;
  for (size_t i = 0; i < path.size(); ++i) {
    const bool code = path[i] == '%' && i + 2 < path.size() && hex_digit(path[i + 1]) >= 0 &&
                      hex_digit(path[i + 2]) >= 0;
    if (!code) {
      out += path[i];
      continue;
    }
    out += static_cast<char>(16 * hex_digit(path[i + 1]) + hex_digit(path[i + 2]));
    i += 2;
  }
  return out;
}

}  // namespace octet::hub
