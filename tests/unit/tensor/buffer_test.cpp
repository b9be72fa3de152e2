#include "tensor/buffer.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <utility>

namespace octet {
namespace {

TEST(BufferTest, MovesAndNeverFreesTwice) {
  static int freed = 0;
  freed = 0;
  char memory[16];
  const auto count = [](void*, size_t, Device) { ++freed; };
  {
    Buffer first(memory, sizeof(memory), Device{}, count);
    Buffer second(std::move(first));
    EXPECT_EQ(first.data(), nullptr);  // NOLINT(bugprone-use-after-move): that is the point
    Buffer third;
    third = std::move(second);
    EXPECT_EQ(third.data(), memory);
    EXPECT_EQ(freed, 0);
  }
  EXPECT_EQ(freed, 1);
}

TEST(BufferTest, RefusesTensorsThatDoNotFit) {
  const Buffer buffer = host_buffer(64);
  EXPECT_NO_THROW(buffer.tensor(DType::f32, {16}));
  EXPECT_THROW(buffer.tensor(DType::f32, {17}), Fault);
  EXPECT_THROW(buffer.tensor(DType::f32, {1}, 62), Fault);
}

TEST(BufferTest, MoreThanTheMachineHasIsAnError) {
  EXPECT_THROW(host_buffer(size_t{1} << 60), Error);
  const size_t available = available_host_memory();
  if (available < std::numeric_limits<size_t>::max()) {
    EXPECT_THROW(host_buffer(available * 2), Error);
  }
}

TEST(ArenaTest, AScopeGivesItsMemoryBack) {
  Arena arena(host_buffer(4096));
  const Tensor kept = arena.take(DType::f32, {10});
  void* inner = nullptr;
  {
    const Arena::Scope scope(arena);
    inner = arena.take(DType::bf16, {100}).data;
  }
  EXPECT_EQ(arena.take(DType::u8, {1}).data, inner);
  EXPECT_NE(kept.data, inner);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(inner) % 256, 0u);
}

// The same calls on a measuring arena give exactly the size that a real one needs.
TEST(ArenaTest, MeasuringIsExact) {
  const auto step = [](Arena& arena) {
    arena.take(DType::f32, {7, 33});
    for (int layer = 0; layer < 3; ++layer) {
      const Arena::Scope scope(arena);
      arena.take(DType::bf16, {65, 129});
      arena.take({Code::e4m3, grids::group128, ScaleType::f32}, 65, 200);
    }
    arena.take(DType::i32, {3});
  };
  Arena measuring;
  step(measuring);
  EXPECT_TRUE(measuring.measuring());

  Arena real(host_buffer(measuring.peak()));
  EXPECT_NO_THROW(step(real));
  EXPECT_EQ(real.peak(), measuring.peak());

  Arena small(host_buffer(measuring.peak() - 1));
  EXPECT_THROW(step(small), Fault);
}

TEST(ArenaTest, AQuantizedMatrixHasScalesForRaggedEdges) {
  Arena arena;
  const QuantTensor x = arena.take({Code::e4m3, grids::group128, ScaleType::f32}, 3, 576);
  EXPECT_EQ(x.codes.shape, Shape({3, 576}));
  EXPECT_EQ(x.scales.shape, Shape({3, 5}));
}

}  // namespace
}  // namespace octet
