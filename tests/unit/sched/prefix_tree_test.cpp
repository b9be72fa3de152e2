#include "sched/prefix_tree.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace octet::sched {
namespace {

using Tokens = std::vector<TokenId>;
using Blocks = std::vector<BlockId>;

// Blocks of two tokens.
struct PrefixTreeTest : ::testing::Test {
  BlockPool pool{6};
  PrefixTree tree{pool, 2};

  // Inserts whole blocks of tokens below the root and lets go of them.
  Blocks add(const Tokens& tokens, std::string_view salt = "") {
    Blocks path;
    for (size_t i = 0; i + 2 <= tokens.size(); i += 2) {
      const BlockId own = *pool.acquire();
      const BlockId block = tree.insert(salt, path.empty() ? kNoBlock : path.back(),
                                        std::span(tokens).subspan(i, 2), own);
      if (block != own) {
        pool.share(block);
        pool.release(own);
      }
      path.push_back(block);
    }
    for (BlockId block : path) pool.release(block);
    tree.check();
    pool.check();
    return path;
  }
};

TEST_F(PrefixTreeTest, MatchesWholeBlocksOnly) {
  const Blocks path = add({1, 2, 3, 4});
  EXPECT_EQ(tree.match("", Tokens{1, 2, 3, 4, 5}, 9), path);
  EXPECT_EQ(tree.match("", Tokens{1, 2, 3, 4}, 1), Blocks{path[0]});
  EXPECT_EQ(tree.match("", Tokens{1, 2, 3}, 9), Blocks{path[0]});
  EXPECT_EQ(tree.match("", Tokens{1, 2, 3, 5}, 9), Blocks{path[0]});
  EXPECT_EQ(tree.match("", Tokens{1}, 9), Blocks{});
  EXPECT_EQ(tree.match("", Tokens{2, 2, 3, 4}, 9), Blocks{});
  EXPECT_EQ(tree.match("", Tokens{1, 2, 3, 4}, 0), Blocks{});
}

TEST_F(PrefixTreeTest, EqualTokensAreStoredOnce) {
  const Blocks one = add({1, 2, 3, 4});
  const Blocks two = add({1, 2, 7, 8});
  EXPECT_EQ(one[0], two[0]);
  EXPECT_NE(one[1], two[1]);
  EXPECT_EQ(tree.size(), 3);
  EXPECT_EQ(pool.cached(), 3);
}

TEST_F(PrefixTreeTest, SaltsDoNotShare) {
  const Blocks a = add({1, 2}, "a");
  EXPECT_EQ(tree.match("b", Tokens{1, 2}, 9), Blocks{});
  EXPECT_EQ(tree.match("", Tokens{1, 2}, 9), Blocks{});
  const Blocks b = add({1, 2}, "b");
  EXPECT_NE(a[0], b[0]);
  EXPECT_EQ(tree.match("a", Tokens{1, 2}, 9), a);
  const Tokens more{3, 4};
  pool.share(a[0]);
  const BlockId own = *pool.acquire();
  EXPECT_THROW(tree.insert("b", a[0], more, own), Fault);
}

TEST_F(PrefixTreeTest, EvictsTheLeastRecentlyUsedLeafFirst) {
  const Blocks one = add({1, 2, 3, 4});  // the parent is as old as the tree, but no leaf
  const Blocks two = add({5, 6});
  tree.touch(one[1]);
  EXPECT_TRUE(tree.evict());
  EXPECT_FALSE(pool.in_tree(two[0]));
  EXPECT_TRUE(tree.evict());
  EXPECT_FALSE(pool.in_tree(one[1]));
  EXPECT_EQ(tree.match("", Tokens{1, 2, 3, 4}, 9), Blocks{one[0]});
  tree.check();
  EXPECT_TRUE(tree.evict());
  EXPECT_FALSE(tree.evict());
  EXPECT_EQ(pool.free(), 6);
  EXPECT_EQ(tree.size(), 0);
  tree.check();
}

TEST_F(PrefixTreeTest, AUseOfALeafIsAUseOfItsPath) {
  const Blocks one = add({1, 2, 3, 4, 5, 6});
  const Blocks two = add({7, 8});
  tree.touch(one[2]);
  const Blocks three = add({9, 9});
  EXPECT_TRUE(tree.evict());
  EXPECT_FALSE(pool.in_tree(two[0]));
  for (int i = 2; i >= 0; --i) {  // the whole of one is older than three
    EXPECT_TRUE(tree.evict());
    EXPECT_FALSE(pool.in_tree(one[static_cast<size_t>(i)]));
    tree.check();
  }
  EXPECT_TRUE(pool.in_tree(three[0]));
}

TEST_F(PrefixTreeTest, NeverEvictsHeldBlocks) {
  const Blocks one = add({1, 2});
  const Blocks two = add({3, 4});
  pool.share(one[0]);
  EXPECT_TRUE(tree.evict());
  EXPECT_FALSE(pool.in_tree(two[0]));
  EXPECT_FALSE(tree.evict());
  EXPECT_TRUE(pool.in_tree(one[0]));
}

TEST_F(PrefixTreeTest, AFreedBlockCanBeUsedForOtherTokens) {
  const Blocks one = add({1, 2});
  EXPECT_TRUE(tree.evict());
  const Blocks two = add({3, 4});
  EXPECT_EQ(one, two);  // the same block
  EXPECT_EQ(tree.match("", Tokens{1, 2}, 9), Blocks{});
  EXPECT_EQ(tree.match("", Tokens{3, 4}, 9), two);
}

TEST_F(PrefixTreeTest, WrongUseIsAFault) {
  const BlockId own = *pool.acquire();
  const Tokens three{1, 2, 3};
  const Tokens two{1, 2};
  EXPECT_THROW(tree.insert("", kNoBlock, three, own), Fault);
  EXPECT_THROW(tree.insert("", own, two, own), Fault);  // the parent is not in the tree
  EXPECT_THROW(tree.touch(own), Fault);
  pool.release(own);
  EXPECT_THROW(tree.insert("", kNoBlock, two, own), Fault);  // nobody holds it
}

}  // namespace
}  // namespace octet::sched
