// What the evaluators make of a model that is broken: no figure, and exit 2.
#include "eval/evaluate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "model/random_weights.h"
#include "unit/model/host_backend.h"
#include "unit/model/support.h"

namespace octet::eval {
namespace {

using test::error_of;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr const char* kLlama = R"({
  "architectures": ["LlamaForCausalLM"], "hidden_size": 32, "intermediate_size": 32,
  "num_hidden_layers": 1, "num_attention_heads": 1, "head_dim": 32, "vocab_size": 50,
  "max_position_embeddings": 64, "rope_theta": 10000.0})";

// All logits are 0, but for `broken` at one token.
class OneLogit : public test::HostBackend {
 public:
  explicit OneLogit(float broken, int64_t token) : broken_(broken), token_(token) {}
  void head_linear(const Tensor&, const ops::Linear&, const Tensor& out) override {
    std::fill_n(out.as<float>(), out.count(), 0.0f);
    for (int64_t row = 0; row < out.rows(); ++row, ++seen_) {
      if (seen_ == token_) out.as<float>()[row * out.cols() + 7] = broken_;
    }
  }

 private:
  float broken_;
  int64_t token_, seen_ = 0;
};

struct Loaded {
  explicit Loaded(float broken, int64_t token = 6) : backend(broken, token) {}
  OneLogit backend;
  model::ModelConfig config = model::parse_config(kLlama, "tiny");
  std::unique_ptr<model::Model> model = model::load_model(
      config, std::make_shared<model::RandomWeights>(config), backend, model::LoadOptions{});
  Subject subject{*model, backend};
};

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();
const std::vector<Piece> kPieces = {{{1, 2, 3, 4}}, {{1, 5, 6, 7}}};

TEST(Evaluate, FiniteLogitsGiveFigures) {
  Loaded good(0), base(1);
  EXPECT_NEAR(perplexity(good.subject, kPieces).value(), 50, 1e-6);
  EXPECT_EQ(compare(Loaded(1).subject, base.subject, kPieces).kl_mean, 0);
}

TEST(Evaluate, NaNAndInfinityAreErrorsThatSayWhere) {
  EXPECT_THAT(
      error_of([] { perplexity(Loaded(kNaN).subject, kPieces); }),
      AllOf(HasSubstr("the model computes NaN"), HasSubstr("token 2 of piece 1 of the text"),
            HasSubstr("logit 7 is"), HasSubstr("octet inspect MODEL")));
  EXPECT_THAT(error_of([] { perplexity(Loaded(-kInfinity).subject, kPieces); }),
              HasSubstr("the model computes an infinity"));
  EXPECT_THAT(error_of([] { compare(Loaded(kNaN).subject, Loaded(1).subject, kPieces); }),
              HasSubstr("the model computes NaN"));
  EXPECT_THAT(error_of([] { compare(Loaded(1).subject, Loaded(kNaN).subject, kPieces); }),
              HasSubstr("the baseline computes NaN"));
}

}  // namespace
}  // namespace octet::eval
