#include "server/web/page.h"

#include <algorithm>

namespace octet::server {
namespace {

// Scripts and styles of this server's own files alone, no frame around the page, no request to
// anybody else: what a model writes can do nothing even if a view showed it wrongly.
constexpr const char* kPolicy =
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

}  // namespace

const Asset* find_asset(std::string_view path) {
  const auto all = assets();
  const auto found = std::ranges::find(all, path, &Asset::path);
  return found == all.end() ? nullptr : &*found;
}

boost::asio::awaitable<void> send_asset(const Asset& asset, const HttpRequest& request,
                                        Responder& responder) {
  responder.header("ETag", std::string(asset.etag));
  // A new binary has a new page: ask each time, and get it only if it is another.
  responder.header("Cache-Control", "no-cache");
  responder.header("Content-Security-Policy", kPolicy);
  responder.header("X-Content-Type-Options", "nosniff");
  responder.header("Referrer-Policy", "no-referrer");
  if (request.if_none_match.find(asset.etag) != std::string::npos) {
    co_await responder.send(304, "", "");
    co_return;
  }
  std::string content(asset.content);
  co_await responder.send(200, std::move(content), asset.type);
}

}  // namespace octet::server
