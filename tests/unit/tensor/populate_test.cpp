#include "tensor/populate.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <chrono>
#include <thread>

#include "tensor/buffer.h"

namespace octet {
namespace {

std::span<std::byte> bytes_of(const Buffer& buffer) {
  return {static_cast<std::byte*>(buffer.data()), buffer.bytes()};
}

size_t resident_bytes(const Buffer& buffer) {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  std::vector<unsigned char> pages((buffer.bytes() + page - 1) / page);
  EXPECT_EQ(mincore(buffer.data(), buffer.bytes(), pages.data()), 0);
  size_t count = 0;
  for (const unsigned char one : pages) count += one & 1;
  return count * page;
}

Populator::State wait_for(const Populator& populator) {
  while (populator.state() == Populator::State::working) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return populator.state();
}

TEST(Populator, MakesAllResidentAndChangesNothing) {
  const Buffer a = host_buffer((size_t{5} << 20) + 100), b = host_buffer(1000);
  auto* words = static_cast<std::byte*>(a.data());
  words[4097] = words[a.bytes() - 1] = std::byte{7};
  EXPECT_LT(resident_bytes(a), size_t{1} << 20);
  Populator populator({bytes_of(a), {}, bytes_of(b)});
  if (wait_for(populator) == Populator::State::unsupported) GTEST_SKIP() << "an old kernel";
  EXPECT_GE(resident_bytes(a), a.bytes());
  EXPECT_GE(resident_bytes(b), b.bytes());
  size_t others = 0;
  for (const std::byte byte : bytes_of(a)) others += byte != std::byte{0} ? 1 : 0;
  EXPECT_EQ(others, 2u);
  EXPECT_EQ(words[4097], std::byte{7});
}

TEST(Populator, EndsWhenItIsNotWantedAnyMore) {
  const Buffer buffer = host_buffer(size_t{512} << 20);
  { const Populator populator({bytes_of(buffer)}); }
  SUCCEED();
}

// While others write: what they wrote stays.
TEST(Populator, WritesMeanwhileAreKept) {
  const Buffer buffer = host_buffer(size_t{16} << 20);
  Populator populator({bytes_of(buffer)});
  auto* data = static_cast<std::byte*>(buffer.data());
  for (size_t i = 0; i < buffer.bytes(); i += 512) data[i] = std::byte{3};
  wait_for(populator);
  for (size_t i = 0; i < buffer.bytes(); i += 512) ASSERT_EQ(data[i], std::byte{3}) << i;
}

}  // namespace
}  // namespace octet
