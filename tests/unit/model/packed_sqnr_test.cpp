// Signal to noise of 4-bit weights in each layout, on the data of sqnr_test.cpp. The figures for
// groups of 128 are those of the formats' specification, the others were computed independently of
// this code; a layout whose zero points, scales or groups are read amiss is many dB off.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "numerics/tolerance.h"
#include "unit/model/packed_writer.h"
#include "unit/numerics/sqnr_samples.h"

namespace octet::model {
namespace {

using test::at;
using test::Layout;
using test::Numbers;

constexpr int64_t kOut = test::kSampleRows, kIn = test::kSampleCols;

double measure(const std::vector<float>& values, const Packing& packing, bool backwards) {
  const Numbers numbers(values, kOut, kIn, packing, backwards);
  const UnpackedWeight weight =
      test::unpack(test::written(numbers, packing, "m"), packing, kOut, kIn);
  std::vector<float> back(values.size());
  for (int64_t n = 0; n < kOut; ++n) {
    for (int64_t k = 0; k < kIn; ++k) {
      const int64_t g = weight.group_of.empty() ? k / weight.group : weight.group_of[at(k)];
      back[at(n * kIn + k)] =
          static_cast<float>(static_cast<int8_t>(weight.codes[at(n * kIn + k)])) *
          weight.scales[at(n * weight.groups + g)];
    }
  }
  return sqnr_db(back, values);
}

TEST(PackedSqnr, MatchesTheKnownFiguresInEachLayout) {
  const std::vector<float> data[] = {test::gaussian(), test::outlier_channels(),
                                     test::lognormal_tokens()};
  struct Row {
    int64_t group;
    bool symmetric;
    double db[3];
  };
  constexpr Row rows[] = {{128, true, {18.6, 15.4, 18.7}}, {128, false, {20.0, 16.8, 20.0}},
                          {64, true, {19.4, 17.9, 19.4}},  {64, false, {20.8, 19.4, 20.8}},
                          {32, true, {20.3, 20.4, 20.3}},  {32, false, {21.9, 21.8, 21.9}}};
  struct Way {
    const char* name;
    Layout layout;
    int zero_offset;
    bool backwards;
  };
  constexpr Way ways[] = {{"AWQ", Layout::awq, 0, false},
                          {"GPTQ v1", Layout::gptq, 1, false},
                          {"GPTQ v2", Layout::gptq, 0, false},
                          {"GPTQ with act-order", Layout::gptq, 0, true},
                          {"compressed-tensors", Layout::compressed, 0, false}};
  for (const Row& row : rows) {
    for (const Way& way : ways) {
      if (row.group != 128 && way.layout != Layout::awq) continue;  // one layout shows the figure
      const Packing packing{.layout = way.layout,
                            .bits = 4,
                            .group = row.group,
                            .symmetric = row.symmetric,
                            .zero_offset = way.zero_offset};
      for (int i = 0; i < 3; ++i) {
        EXPECT_NEAR(measure(data[i], packing, way.backwards), row.db[i], 0.3)
            << fmt::format("{} in groups of {}, {}symmetric, data {}", way.name, row.group,
                           row.symmetric ? "" : "a", i);
      }
    }
  }
}

}  // namespace
}  // namespace octet::model
