#include "base/queue.h"

#include <gtest/gtest.h>

#include <memory>
#include <thread>
#include <vector>

namespace octet {
namespace {

using std::chrono::milliseconds;

TEST(Queue, IsFirstInFirstOutAndBounded) {
  Queue<int> queue(2);
  EXPECT_TRUE(queue.push(1));
  EXPECT_TRUE(queue.try_push(2));
  EXPECT_FALSE(queue.try_push(3));
  EXPECT_EQ(queue.size(), 2u);
  EXPECT_EQ(queue.pop(), 1);
  EXPECT_EQ(queue.try_pop(), 2);
  EXPECT_EQ(queue.try_pop(), std::nullopt);
  EXPECT_EQ(queue.pop_for(milliseconds(1)), std::nullopt);
}

TEST(Queue, CloseDrainsAndWakes) {
  Queue<int> queue(1);
  queue.push(1);
  std::thread producer([&] { EXPECT_FALSE(queue.push(2)); });  // full: waits until closed
  std::this_thread::sleep_for(milliseconds(5));
  queue.close();
  producer.join();
  EXPECT_TRUE(queue.closed());
  EXPECT_EQ(queue.pop(), 1);
  EXPECT_EQ(queue.pop(), std::nullopt);
  EXPECT_FALSE(queue.push(3));

  Queue<int> idle(1);
  std::thread consumer([&] { EXPECT_EQ(idle.pop(), std::nullopt); });
  std::this_thread::sleep_for(milliseconds(5));
  idle.close();
  consumer.join();
}

TEST(Queue, TryPushLeavesARefusedItemWhole) {
  Queue<std::unique_ptr<int>> queue(1);
  EXPECT_TRUE(queue.try_push(std::make_unique<int>(1)));
  auto item = std::make_unique<int>(2);
  EXPECT_FALSE(queue.try_push(std::move(item)));
  ASSERT_TRUE(item);
  EXPECT_EQ(*item, 2);
}

TEST(Queue, KeepsEachProducersOrderUnderLoad) {
  Queue<std::pair<int, int>> queue(3);
  std::vector<std::thread> producers;
  for (int p = 0; p < 3; ++p) {
    producers.emplace_back([&queue, p] {
      for (int i = 0; i < 500; ++i) queue.push({p, i});
    });
  }
  std::vector<int> next(3);
  for (int i = 0; i < 1500; ++i) {
    const auto item = queue.pop();
    ASSERT_TRUE(item);
    EXPECT_EQ(item->second, next[static_cast<size_t>(item->first)]++);
  }
  for (std::thread& producer : producers) producer.join();
}

}  // namespace
}  // namespace octet
