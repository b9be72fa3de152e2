// The console page at /: static files with headers that let them reach this server and nobody else.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <string_view>

#include "server/http.h"
#include "server/web/assets.h"

namespace octet::server {

// Null: the page has no such file.
const Asset* find_asset(std::string_view path);

// Sends it, or 304 to a client that has it.
boost::asio::awaitable<void> send_asset(const Asset& asset, const HttpRequest& request,
                                        Responder& responder);

}  // namespace octet::server
