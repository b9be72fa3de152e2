// What doctor says of a processor.
#include "backends/cpu/advice.h"

#include <gmock/gmock.h>

namespace octet::cpu {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

TEST(Advice, CountsNodes) {
  EXPECT_EQ(count_nodes("0"), 1);
  EXPECT_EQ(count_nodes("0-1"), 2);
  EXPECT_EQ(count_nodes("0,2-3"), 3);
  EXPECT_EQ(count_nodes(""), 1);
  EXPECT_EQ(count_nodes("nodes"), 1);
  EXPECT_EQ(count_nodes("3-1"), 1);
}

// INT8 where it has a kernel of its own and FP8 has no tiles; nowhere else.
TEST(Advice, NamesTheFasterScheme) {
  const CpuCaps none{}, avx2{.avx2 = true};
  const CpuCaps vnni{.avx2 = true, .avx512_bf16 = true};
  const CpuCaps tiles{.avx2 = true, .avx512_bf16 = true, .amx_bf16 = true};
  EXPECT_THAT(advice(none, 1), IsEmpty());
  EXPECT_THAT(advice(avx2, 1), IsEmpty());
  EXPECT_THAT(advice(vnni, 1), ElementsAre(HasSubstr("--scheme int8")));
  EXPECT_THAT(advice(tiles, 1), IsEmpty());
}

TEST(Advice, NotesNodesOfMemory) {
  EXPECT_THAT(advice({}, 2), ElementsAre(HasSubstr("2 NUMA nodes")));
}

}  // namespace
}  // namespace octet::cpu
