// Work that would hold up the event loop goes to another thread, and its coroutine waits for it.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/bind_executor.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/this_coro.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <exception>

namespace octet::server {

// Runs `work` on the workers, and comes back to the executor of the coroutine that asks; throws
// what `work` throws.
template <typename Work>
boost::asio::awaitable<void> on_worker(boost::asio::any_io_executor workers, Work work) {
  namespace asio = boost::asio;
  const asio::any_io_executor home = co_await asio::this_coro::executor;
  std::exception_ptr failure;
  co_await asio::post(asio::bind_executor(workers, asio::use_awaitable));
  try {
    work();
  } catch (...) {
    failure = std::current_exception();
  }
  co_await asio::post(asio::bind_executor(home, asio::use_awaitable));
  if (failure) std::rethrow_exception(failure);
}

}  // namespace octet::server
