#include "backends/nvml/nvml.h"

#include <gmock/gmock.h>

#include <string>

namespace octet::nvml {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(Nvml, ReadsWhatTheLibraryTells) {
  const Report report = query(OCTET_FAKE_NVML);
  EXPECT_EQ(report.problem, "");
  EXPECT_EQ(report.driver, "999.1");
  EXPECT_EQ(report.cuda_version, 13020);
  ASSERT_EQ(report.gpus.size(), 1U);
  const Gpu& gpu = report.gpus[0];
  EXPECT_EQ(gpu.name, "Fake H200");
  EXPECT_EQ(gpu.major, 9);
  EXPECT_EQ(gpu.memory_total, 100);
  EXPECT_EQ(gpu.memory_used, 30);
  EXPECT_EQ(gpu.sm_mhz, 1410);
  EXPECT_EQ(gpu.memory_mhz, 3201);
  EXPECT_EQ(gpu.power_watts, 650.5);
  EXPECT_THAT(gpu.throttle_reasons.value(), ElementsAre("power cap", "hardware temperature limit"));
  EXPECT_EQ(gpu.ecc, true);
  EXPECT_EQ(gpu.corrected, 5);
  EXPECT_EQ(gpu.uncorrected, 2);
  EXPECT_EQ(gpu.remapped_rows.value().uncorrected, 3);
  // What it refuses and what it lacks is not told.
  EXPECT_EQ(gpu.celsius, std::nullopt);
  EXPECT_EQ(gpu.mig, std::nullopt);
  EXPECT_EQ(gpu.power_limit_watts, std::nullopt);
}

TEST(Nvml, SaysWhatToDo) {
  EXPECT_THAT(query(OCTET_FAKE_NVML).gpus.at(0).problems(),
              ElementsAre(HasSubstr("2 uncorrected"), HasSubstr("wait to be remapped"),
                          HasSubstr("hardware temperature")));
  EXPECT_TRUE(Gpu().problems().empty());
}

TEST(Nvml, SaysWhyThereIsNone) {
  const Report report = query("/no/such/library.so");
  EXPECT_TRUE(report.gpus.empty());
  EXPECT_THAT(report.problem, HasSubstr("cannot open /no/such/library.so"));
}

}  // namespace
}  // namespace octet::nvml
