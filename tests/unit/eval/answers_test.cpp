// Answers through the engine, and likelihoods with shared prefixes, against what is slow and
// obvious.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "backends/cpu/cpu_backend.h"
#include "eval/choices.h"
#include "eval/generate.h"
#include "model/checkpoint.h"
#include "unit/base/error_of.h"

namespace octet::eval {
namespace {

using test::error_of;
using ::testing::HasSubstr;

const std::string kModel = std::string(OCTET_SOURCE_DIR) + "/models/octet-demo";

class Answers : public ::testing::Test {
 protected:
  cpu::CpuBackend backend_{{.threads = 2}};
  std::unique_ptr<model::Model> model_ =
      model::load_model(model::read_config(kModel), model::open_weights(kModel), backend_,
                        {.compute = model::Compute::bf16, .max_positions = 256});
  Subject subject_{*model_, backend_};
  text::Tokenizer tokenizer_ = text::Tokenizer::load(kModel);

  // Greedily, one token at a time, from an empty cache.
  std::vector<int32_t> greedy(std::vector<int32_t> tokens, int count) {
    const size_t prompt = tokens.size();
    for (int i = 0; i < count; ++i) {
      engine::Session session(*model_, backend_, {.max_tokens = 256, .logits_rows = 1});
      session.extend(0, tokens, engine::Wanted::last, [&](int64_t, const Tensor& logits) {
        tokens.push_back(summarize(engine::row_of(logits, 0)).best);
      });
    }
    return {tokens.begin() + static_cast<std::ptrdiff_t>(prompt), tokens.end()};
  }
  // The sum from one pass over all of it.
  double score(const Choice& choice) {
    const Piece piece{.tokens = choice.tokens, .context = choice.context};
    return -perplexity(subject_, {&piece, 1}).nll;
  }
};

TEST_F(Answers, AreThoseOfOneTokenAfterTheOther) {
  std::vector<Job> jobs;
  for (const char* prompt : {"def add(a, b):\n", "import", "# The", "class Stack:\n    def"}) {
    jobs.push_back({.prompt = tokenizer_.encode(prompt), .max_tokens = 6});
  }
  std::vector<Answer> answers(jobs.size());
  generate(subject_, tokenizer_, jobs, {.sequences = 3, .max_model_len = 64},
           [&](size_t job, Answer answer) { answers[job] = std::move(answer); });
  for (size_t i = 0; i < jobs.size(); ++i) {
    const std::vector<int32_t> expected = greedy(jobs[i].prompt, 6);
    EXPECT_EQ(answers[i].tokens, expected) << i;
    EXPECT_EQ(answers[i].text, tokenizer_.decode(expected, true));
    EXPECT_FALSE(answers[i].complete);
  }
}

TEST_F(Answers, EndBeforeAStopString) {
  const std::vector<int32_t> prompt = tokenizer_.encode("def add(a, b):\n");
  const std::string whole = tokenizer_.decode(greedy(prompt, 12), true);
  const std::string stop = whole.substr(whole.size() / 2, 2);
  const Job job{.prompt = prompt, .max_tokens = 12, .stop = {stop}};
  Answer got;
  generate(subject_, tokenizer_, {&job, 1}, {.max_model_len = 64},
           [&](size_t, Answer answer) { got = std::move(answer); });
  EXPECT_EQ(got.text, whole.substr(0, whole.find(stop)));
  EXPECT_TRUE(got.complete);
}

TEST_F(Answers, APromptThatDoesNotFitIsAnError) {
  const Job job{.prompt = std::vector<int32_t>(60, 5), .max_tokens = 10};
  EXPECT_THAT(error_of([&] {
                generate(subject_, tokenizer_, {&job, 1}, {.max_model_len = 64},
                         [](size_t, const Answer&) {});
              }),
              HasSubstr("prompt 0"));
}

TEST_F(Answers, SharedPrefixesChangeNoBit) {
  ChoiceScorer scorer(subject_, 128);
  int64_t tokens = 0;
  for (const char* question : {"def first(", "def first(items", "import os"}) {
    for (const char* continuation : {" A", " B", " return items[0]", " B"}) {
      const Choice choice = encode_choice(tokenizer_, question, continuation);
      tokens += static_cast<int64_t>(choice.tokens.size()) - 1;
      EXPECT_EQ(scorer.score(choice, "a choice"), score(choice)) << question << continuation;
    }
  }
  EXPECT_LT(scorer.computed_tokens(), tokens * 3 / 4) << "and it saves work";
}

TEST_F(Answers, SpacesBelongToTheContinuation) {
  const Choice choice = encode_choice(tokenizer_, "Answer: ", "A");
  EXPECT_EQ(choice.tokens, tokenizer_.encode("Answer: A"));
  EXPECT_EQ(choice.context, static_cast<int64_t>(tokenizer_.encode("Answer:").size()));
  EXPECT_THAT(error_of([&] { encode_choice(tokenizer_, "Answer:", ""); }),
              HasSubstr("no token of its own"));
}

}  // namespace
}  // namespace octet::eval
