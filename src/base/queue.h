// A bounded first-in-first-out queue between threads: many producers, one consumer.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <mutex>
#include <optional>
#include <utility>

#include "base/error.h"

namespace octet {

template <class T>
class Queue {
 public:
  explicit Queue(size_t capacity) : capacity_(capacity) {
    invariant(capacity > 0, "a queue holds at least one item");
  }

  // Waits while the queue is full. False, and `item` is dropped, once it is closed.
  bool push(T item) {
    std::unique_lock lock(mutex_);
    not_full_.wait(lock, [&] { return closed_ || items_.size() < capacity_; });
    if (closed_) return false;
    return put(std::move(item), lock);
  }

  // Never waits. False if full or closed; `item` is then untouched.
  bool try_push(T&& item) {
    std::unique_lock lock(mutex_);
    if (closed_ || items_.size() >= capacity_) return false;
    return put(std::move(item), lock);
  }

  // Waits for an item. nullopt once the queue is closed and drained.
  std::optional<T> pop() {
    std::unique_lock lock(mutex_);
    not_empty_.wait(lock, [&] { return closed_ || !items_.empty(); });
    return take(lock);
  }

  // As pop(), but gives up after `time`: nullopt then too; closed() tells the two apart.
  template <class Rep, class Period>
  std::optional<T> pop_for(std::chrono::duration<Rep, Period> time) {
    std::unique_lock lock(mutex_);
    not_empty_.wait_for(lock, time, [&] { return closed_ || !items_.empty(); });
    return take(lock);
  }

  // Never waits.
  std::optional<T> try_pop() {
    std::unique_lock lock(mutex_);
    return take(lock);
  }

  // Refuses items from now on and wakes everybody; what is queued can still be popped.
  void close() {
    const std::scoped_lock lock(mutex_);
    closed_ = true;
    not_full_.notify_all();
    not_empty_.notify_all();
  }

  bool closed() const {
    const std::scoped_lock lock(mutex_);
    return closed_;
  }

  size_t size() const {
    const std::scoped_lock lock(mutex_);
    return items_.size();
  }

 private:
  bool put(T item, std::unique_lock<std::mutex>& lock) {
    items_.push_back(std::move(item));
    lock.unlock();
    not_empty_.notify_one();
    return true;
  }

  std::optional<T> take(std::unique_lock<std::mutex>& lock) {
    if (items_.empty()) return std::nullopt;
    std::optional<T> item(std::move(items_.front()));
    items_.pop_front();
    lock.unlock();
    not_full_.notify_one();
    return item;
  }

  const size_t capacity_;
  mutable std::mutex mutex_;
  std::condition_variable not_full_, not_empty_;
  std::deque<T> items_;
  bool closed_ = false;
};

}  // namespace octet
