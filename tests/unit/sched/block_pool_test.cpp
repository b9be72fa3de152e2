#include "sched/block_pool.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace octet::sched {
namespace {

TEST(BlockPool, HandsOutEveryBlockOnceAndThenNothing) {
  BlockPool pool(3);
  EXPECT_EQ(pool.acquire(), 0);
  EXPECT_EQ(pool.acquire(), 1);
  EXPECT_EQ(pool.acquire(), 2);
  EXPECT_EQ(pool.acquire(), std::nullopt);
  EXPECT_EQ(pool.held(), 3);
  pool.check();
  pool.release(1);
  EXPECT_EQ(pool.free(), 1);
  EXPECT_EQ(pool.acquire(), 1);
  pool.check();
}

TEST(BlockPool, KeepsSharedBlocksUntilTheLastRelease) {
  BlockPool pool(2);
  const BlockId block = *pool.acquire();
  pool.share(block);
  EXPECT_EQ(pool.refs(block), 2);
  pool.release(block);
  EXPECT_EQ(pool.held(), 1);
  pool.release(block);
  EXPECT_EQ(pool.held(), 0);
  EXPECT_EQ(pool.free(), 2);
  pool.check();
}

TEST(BlockPool, BlocksOfTheTreeAreCachedUntilEvicted) {
  BlockPool pool(2);
  const BlockId block = *pool.acquire();
  pool.set_in_tree(block);
  pool.release(block);
  EXPECT_EQ(pool.cached(), 1);
  EXPECT_EQ(pool.free(), 1);
  pool.check();
  pool.share(block);  // a prefix hit
  EXPECT_EQ(pool.cached(), 0);
  EXPECT_EQ(pool.held(), 1);
  pool.release(block);
  pool.evict(block);
  EXPECT_EQ(pool.free(), 2);
  EXPECT_FALSE(pool.in_tree(block));
  pool.check();
}

TEST(BlockPool, MisuseIsAFault) {
  BlockPool pool(2);
  EXPECT_THROW(pool.release(0), Fault);
  EXPECT_THROW(pool.share(0), Fault);
  EXPECT_THROW(pool.set_in_tree(0), Fault);
  EXPECT_THROW(pool.evict(0), Fault);
  EXPECT_THROW(pool.release(2), Fault);
  EXPECT_THROW(pool.share(-1), Fault);
  const BlockId block = *pool.acquire();
  pool.set_in_tree(block);
  EXPECT_THROW(pool.set_in_tree(block), Fault);
  EXPECT_THROW(pool.evict(block), Fault);
  EXPECT_THROW(BlockPool(0), Fault);
  pool.check();
}

}  // namespace
}  // namespace octet::sched
