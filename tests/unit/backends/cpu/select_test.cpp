// How the CPU backend picks kernels, and what it says when it cannot.
#include "backends/cpu/select.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "backends/cpu/cpu_backend.h"
#include "base/error.h"

namespace octet::cpu {
namespace {

using testing::HasSubstr;

double cost(const ops::OpDesc& desc, double one, double many) {
  return desc.m == 1 ? one : many;
}

std::optional<std::string> never(const ops::OpDesc&, const CpuCaps&) {
  return std::nullopt;
}

// "a" and "b" sum alike; "c" is fastest for many rows, but sums differently.
const std::vector<LinearRow> kRows = {
    {"a", "order1", never, [](const ops::OpDesc& d, const CpuCaps&) { return cost(d, 1, 9); },
     nullptr},
    {"b", "order1", never, [](const ops::OpDesc& d, const CpuCaps&) { return cost(d, 2, 5); },
     nullptr},
    {"c", "order2", never, [](const ops::OpDesc& d, const CpuCaps&) { return cost(d, 3, 1); },
     nullptr},
    {"d", "order1",
     [](const ops::OpDesc&, const CpuCaps&) -> std::optional<std::string> {
       return "needs a moon";
     },
     [](const ops::OpDesc&, const CpuCaps&) { return 0.0; }, nullptr},
};

TEST(Pick, KeepsOneOrderOfSummationForEveryNumberOfRows) {
  ops::OpDesc desc{.op = "linear", .m = 1, .n = 8, .k = 8};
  EXPECT_EQ(pick(kRows, desc, CpuCaps{}, "").row->name, "a");
  desc.m = 64;
  const auto picked = pick(kRows, desc, CpuCaps{}, "");
  EXPECT_EQ(picked.row->name, "b");
  ASSERT_EQ(picked.rejected.size(), 3u);
  EXPECT_EQ(picked.rejected[0].kernel, "d");
  EXPECT_EQ(picked.rejected[0].reason, "needs a moon");
}

TEST(Pick, HonoursPinsAndSaysWhyNothingRuns) {
  const ops::OpDesc desc{.op = "linear", .m = 1, .n = 8, .k = 8};
  EXPECT_EQ(pick(kRows, desc, CpuCaps{}, "c").row->name, "c");
  // A pinned kernel runs what it can; the table decides about the rest.
  const auto other = pick(kRows, desc, CpuCaps{}, "d");
  EXPECT_EQ(other.row->name, "a");
  EXPECT_EQ(other.rejected[0].reason, "needs a moon");
  try {
    pick(std::vector<LinearRow>{kRows[3]}, desc, CpuCaps{}, "d");
    FAIL();
  } catch (const Fault& fault) {
    EXPECT_THAT(fault.what(), HasSubstr("needs a moon"));
    EXPECT_THAT(fault.what(), HasSubstr("linear m=1 n=8 k=8"));
  }
}

TEST(Caps, FollowTheSetThatIsAskedFor) {
  const CpuCaps all{true, true, 1}, old{true, false, 1};
  EXPECT_TRUE(caps_for({.kernels = "auto"}, all).avx512_bf16);
  EXPECT_FALSE(caps_for({.kernels = "avx2"}, all).avx512_bf16);
  EXPECT_FALSE(caps_for({.kernels = "portable"}, all).avx2);
  const CpuCaps tiles{.avx2 = true, .avx512_bf16 = true, .amx_bf16 = true};
  EXPECT_TRUE(caps_for({.kernels = "auto"}, tiles).amx_bf16);
  EXPECT_TRUE(caps_for({.kernels = "amx"}, tiles).amx_bf16);
  for (const char* set : {"avx512", "avx2", "portable"}) {
    EXPECT_FALSE(caps_for({.kernels = set}, tiles).amx_bf16) << set;
  }
  EXPECT_THROW(caps_for({.kernels = "amx"}, all), Error);
  EXPECT_THROW(caps_for({.kernels = "avx512"}, old), Error);
  EXPECT_THROW(caps_for({.kernels = "sse9"}, all), Error);
}

TEST(CpuBackend, NamesItselfAndItsChoices) {
  const CpuBackend exact({.threads = 1, .kernels = "exact"});
  EXPECT_EQ(exact.info().name, "cpu exact, 1 thread");
  EXPECT_EQ(exact.info().launch_depth, 1);
  ops::OpDesc desc{
      .op = "linear", .m = 4, .n = 256, .k = 128, .weight = DType::f32, .activation = DType::f32};
  const ops::Choice choice = exact.choose(desc);
  EXPECT_EQ(choice.kernel, "exact");
  EXPECT_EQ(choice.bytes, 4 * (256 * 128 + 4 * 128 + 4 * 256));
  EXPECT_THAT(exact.kernels_for(desc), testing::ElementsAre("exact"));
}

TEST(CpuBackend, RefusesPinsThatDoNotExist) {
  try {
    const CpuBackend backend({.threads = 1, .pins = {{"linear", "warp9"}}});
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("linear=warp9"));
    EXPECT_THAT(error.what(), HasSubstr("exact"));
  }
  EXPECT_THROW(CpuBackend({.threads = 1, .pins = {{"dance", "exact"}}}), Error);
}

TEST(CpuBackend, AllocationsNameTheirUse) {
  CpuBackend backend({.threads = 1});
  EXPECT_EQ(backend.alloc(100, "test").bytes(), 100u);
  try {
    backend.alloc(size_t{1} << 60, "KV cache");
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("KV cache"));
  }
}

TEST(Pick, AttentionByAmxTakesWhatBf16HoldsExactly) {
  const MlaAttentionRow& row = fast_mla_attention_rows()[1];
  ASSERT_EQ("amx", row.name);
  CpuCaps caps{true, true, 2};
  ops::OpDesc desc;
  desc.op = "mla_attention";
  desc.weight = DType::e4m3;
  desc.activation = DType::bf16;
  EXPECT_TRUE(row.refuses(desc, caps).has_value());
  caps.amx_bf16 = true;
  for (const DType cache : {DType::e4m3, DType::e5m2, DType::bf16}) {
    desc.weight = cache;
    EXPECT_FALSE(row.refuses(desc, caps).has_value()) << name_of(cache);
  }
  desc.activation = DType::f32;
  EXPECT_TRUE(row.refuses(desc, caps).has_value());
  desc.activation = DType::bf16;
  desc.weight = DType::f32;
  EXPECT_TRUE(row.refuses(desc, caps).has_value());
}

}  // namespace
}  // namespace octet::cpu
