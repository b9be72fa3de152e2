#include "sched/admission.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"

namespace octet::sched {
namespace {

using Reason = Admission::Reason;
using ::testing::HasSubstr;

Config config(int32_t model_len, int32_t num_blocks) {
  Config c;
  c.block_tokens = 4;
  c.num_blocks = num_blocks;
  c.max_model_len = model_len;
  return c;
}

Request request(size_t prompt, std::optional<int32_t> max_tokens) {
  Request r;
  r.prompt.assign(prompt, 1);
  r.max_tokens = max_tokens;
  return r;
}

TEST(Admission, RefusesAnEmptyPrompt) {
  EXPECT_EQ(admit(config(32, 8), request(0, 4)).reason, Reason::empty_prompt);
}

TEST(Admission, RefusesAPromptThatLeavesNoRoomWithTheRealLimit) {
  EXPECT_EQ(admit(config(32, 8), request(31, {})).reason, Reason::ok);
  const Admission refused = admit(config(32, 8), request(32, {}));
  EXPECT_EQ(refused.reason, Reason::prompt_too_long);
  EXPECT_EQ(refused.prompt_tokens, 32);
  EXPECT_EQ(refused.max_model_len, 32);
  EXPECT_THAT(refused.message(), HasSubstr("32 tokens"));
}

TEST(Admission, ClampsMaxTokensOnlyIfUnset) {
  EXPECT_EQ(admit(config(32, 8), request(30, {})).max_tokens, 2);
  EXPECT_EQ(admit(config(32, 8), request(30, 2)).max_tokens, 2);
  const Admission refused = admit(config(32, 8), request(30, 3));
  EXPECT_EQ(refused.reason, Reason::exceeds_model_len);
  EXPECT_THAT(refused.message(), HasSubstr("30 tokens and max_tokens is 3, 33 together"));
}

TEST(Admission, RefusesWhatNeverFitsIntoThePool) {
  // 2 blocks of 4: 8 computed tokens, and a ninth that is only sampled.
  EXPECT_EQ(admit(config(100, 2), request(6, 3)).reason, Reason::ok);
  EXPECT_EQ(admit(config(100, 2), request(6, 4)).reason, Reason::exceeds_pool);
  EXPECT_EQ(admit(config(100, 2), request(6, {})).max_tokens, 3);
  EXPECT_EQ(admit(config(100, 2), request(8, {})).max_tokens, 1);
  const Admission refused = admit(config(100, 2), request(9, {}));
  EXPECT_EQ(refused.reason, Reason::exceeds_pool);
  EXPECT_EQ(refused.pool_tokens, 8);
  EXPECT_THAT(refused.message(), HasSubstr("holds 8 tokens"));
}

TEST(Admission, RefusesSenselessOutputLengths) {
  EXPECT_EQ(admit(config(32, 8), request(4, 0)).reason, Reason::bad_max_tokens);
  EXPECT_EQ(admit(config(32, 8), request(4, -1)).reason, Reason::bad_max_tokens);
  Request r = request(4, 3);
  r.min_tokens = 4;
  EXPECT_EQ(admit(config(32, 8), r).reason, Reason::bad_max_tokens);
  EXPECT_THAT(admit(config(32, 8), r).message(), HasSubstr("max_tokens is 3, min_tokens is 4"));
  r.min_tokens = -1;
  EXPECT_EQ(admit(config(32, 8), r).reason, Reason::bad_max_tokens);
  r.min_tokens = 3;
  EXPECT_TRUE(admit(config(32, 8), r).ok());
  EXPECT_EQ(admit(config(32, 8), r).message(), "");
}

TEST(Config, NamesTheFieldThatMakesNoSense) {
  EXPECT_NO_THROW(validate(config(32, 8)));
  const auto where = [](const Config& c) {
    try {
      validate(c);
    } catch (const Error& error) {
      return error.parts().where;
    }
    return std::string();
  };
  Config c = config(32, 0);
  EXPECT_EQ(where(c), "num_blocks");
  c = config(1, 8);
  EXPECT_EQ(where(c), "max_model_len");
  c = config(32, 8);
  c.max_num_batched_tokens = c.max_num_seqs - 1;
  EXPECT_EQ(where(c), "max_num_batched_tokens");
  c = config(32, 8);
  c.launch_depth = 0;
  EXPECT_EQ(where(c), "launch_depth");
  c = config(32, 8);
  c.block_tokens = 0;
  EXPECT_EQ(where(c), "block_tokens");
  c = config(32, 8);
  c.max_chunk = -1;
  EXPECT_EQ(where(c), "max_chunk");
  c = config(32, 8);
  c.max_num_seqs = 0;
  EXPECT_EQ(where(c), "max_num_seqs");
}

}  // namespace
}  // namespace octet::sched
