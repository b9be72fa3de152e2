// The bundled demo model against its reference.json (what HF transformers computes from it), and
// its FP8 runs against FP32.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "backends/cpu/cpu_backend.h"
#include "base/json.h"
#include "base/mapped_file.h"
#include "engine/session.h"
#include "eval/evaluate.h"
#include "numerics/scheme.h"
#include "offline/quantize.h"
#include "text/tokenizer.h"
#include "unit/base/temp_dir.h"

namespace octet::golden {
namespace {

const std::string kModel = std::string(OCTET_SOURCE_DIR) + "/models/octet-demo";

std::unique_ptr<model::Model> load(ops::Backend& backend, const model::LoadOptions& options,
                                   const std::string& folder = kModel) {
  return model::load_model(model::read_config(folder), std::make_shared<model::Checkpoint>(folder),
                           backend, options);
}

model::LoadOptions fp8(std::string_view scheme) {
  return {.compute = model::Compute::fp8, .online = scheme_named(scheme).format};
}

class DemoModel : public ::testing::Test {
 protected:
  DemoModel() : reference_(parse_json_file(kModel + "/reference.json")) {}

  std::vector<eval::Piece> pieces(const std::string& text, eval::Convention convention,
                                  int64_t window) const {
    const auto ids =
        tokenizer_.encode(read_text(kModel + "/" + text), {.add_special_tokens = false});
    return eval::cut(ids, reference_["bos_token_id"].get<int32_t>(), convention, window, 8192);
  }
  std::vector<eval::Piece> windows(const std::string& text) const {
    return pieces(text, eval::Convention::windows, 512);
  }

  Json reference_;
  text::Tokenizer tokenizer_ = text::Tokenizer::load(kModel);
};

struct Candidate {
  int32_t token;
  double logprob;
};

std::vector<Candidate> best(const Tensor& logits, size_t count) {
  const std::span<const float> row(logits.as<float>(), static_cast<size_t>(logits.cols()));
  const double total = eval::summarize(row).log_sum_exp;
  std::vector<Candidate> all;
  for (size_t i = 0; i < row.size(); ++i) all.push_back({static_cast<int32_t>(i), row[i] - total});
  std::partial_sort(all.begin(), all.begin() + static_cast<ptrdiff_t>(count), all.end(),
                    [](const Candidate& a, const Candidate& b) { return a.logprob > b.logprob; });
  all.resize(count);
  return all;
}

// Steps before the first whose two best tokens are nearly equal: after it, either is right.
size_t decided_steps(const std::vector<double>& margins) {
  size_t steps = 0;
  while (steps < margins.size() && margins[steps] >= 1e-3) ++steps;
  return steps;
}

class DemoPrompts : public DemoModel, public ::testing::WithParamInterface<const char*> {};

TEST_P(DemoPrompts, GreedyTokensAndLogProbabilitiesInFp32) {
  cpu::CpuBackend backend({.kernels = GetParam()});
  const auto model = load(backend, {.compute = model::Compute::fp32});
  engine::Session session(*model, backend, {.max_tokens = 256, .logits_rows = 1});
  for (const auto& [name, prompt] : reference_["prompts"].items()) {
    SCOPED_TRACE(name);
    const auto ids = prompt["ids"].get<std::vector<int32_t>>();
    EXPECT_EQ(tokenizer_.encode(prompt["text"].get<std::string>()), ids);
    const auto greedy = prompt["greedy_ids"].get<std::vector<int32_t>>();
    const size_t steps = decided_steps(prompt["greedy_margins"].get<std::vector<double>>());
    std::vector<int32_t> found;
    session.reset();
    session.extend(0, ids, engine::Wanted::last, [&](int64_t, const Tensor& logits) {
      const std::vector<Candidate> top = best(logits, 10);
      for (size_t i = 0; i < top.size(); ++i) {
        EXPECT_EQ(top[i].token, prompt["top10_ids"][i].get<int32_t>());
        EXPECT_NEAR(top[i].logprob, prompt["top10_logprobs"][i].get<double>(), 2e-3);
      }
      found.push_back(top[0].token);
    });
    while (found.size() < steps) {
      found.push_back(best(session.decode({&found.back(), 1}), 1)[0].token);
    }
    found.resize(steps);
    EXPECT_EQ(found, std::vector(greedy.begin(), greedy.begin() + static_cast<ptrdiff_t>(steps)));
  }
}

INSTANTIATE_TEST_SUITE_P(Golden, DemoPrompts, ::testing::Values("exact", "auto"),
                         [](const auto& info) { return std::string(info.param); });

TEST_F(DemoModel, PerplexityInFp32AndBf16) {
  cpu::CpuBackend backend;
  for (const auto& [compute, tolerance] :
       {std::pair(model::Compute::fp32, 0.001), std::pair(model::Compute::bf16, 0.01)}) {
    SCOPED_TRACE(name_of(compute));
    const auto model = load(backend, {.compute = compute});
    for (const auto& [text, expected] : reference_["texts"].items()) {
      SCOPED_TRACE(text);
      const eval::Perplexity windowed = eval::perplexity({*model, backend}, windows(text));
      EXPECT_EQ(windowed.tokens, expected["tokens"].get<int64_t>());
      EXPECT_NEAR(windowed.value() / expected["perplexity"].get<double>(), 1.0, tolerance);
      const eval::Perplexity single =
          eval::perplexity({*model, backend}, pieces(text, eval::Convention::single, 0));
      EXPECT_NEAR(single.value() / expected["single_pass_perplexity"].get<double>(), 1.0,
                  tolerance);
    }
    EXPECT_EQ(eval::describe(eval::Convention::windows, 512, true),
              reference_["texts"]["eval_code.txt"]["convention"].get<std::string>());
  }
}

// A small part of docs/QUALITY.md, with room for what 1,773 tokens leave to chance.
class DemoFidelity : public DemoModel {
 protected:
  DemoFidelity() : baseline_(load(backend_, {.compute = model::Compute::fp32})) {}

  eval::Comparison compare(const model::Model& candidate, model::KvType kv, bool unit_scale) {
    std::vector<eval::Piece> all = windows("eval_code.txt");
    for (eval::Piece& piece : windows("eval_docs.txt")) all.push_back(std::move(piece));
    return eval::compare({candidate, backend_, kv, unit_scale}, {*baseline_, backend_}, all);
  }

  cpu::CpuBackend backend_;
  std::unique_ptr<model::Model> baseline_;
};

TEST_F(DemoFidelity, Fp8LandsWhereASimulationOfItDoes) {
  for (const char* scheme : {"fp8_channel", "fp8_block"}) {
    SCOPED_TRACE(scheme);
    const auto model = load(backend_, fp8(scheme));
    const eval::Comparison result = compare(*model, model::KvType::automatic, false);
    // Far below would not be FP8; far above would be a fault.
    EXPECT_GT(result.kl_mean, 0.005);
    EXPECT_LT(result.kl_mean, 0.03);
    EXPECT_LT(result.candidate.value() / result.baseline.value(), 1.04);
    EXPECT_GT(result.top1_agreement(), 0.90);
    EXPECT_GT(result.layers.back().relative, 0.01);
    EXPECT_LT(result.layers.back().relative, 0.2);
  }
}

// E5M2 has half the precision; if it did not show, the measurement would not see the cache at all.
TEST_F(DemoFidelity, AnE5m2LatentIsWorseThanE4m3) {
  const eval::Comparison e4m3 = compare(*baseline_, model::KvType::fp8_e4m3, false);
  const eval::Comparison e5m2 = compare(*baseline_, model::KvType::fp8_e5m2, true);
  EXPECT_GT(e4m3.kl_mean, 0.0003);
  EXPECT_GT(e5m2.kl_mean, 2.0 * e4m3.kl_mean);
}

TEST_F(DemoFidelity, AModelAgainstItselfIsTheSame) {
  const eval::Comparison same = compare(*baseline_, model::KvType::automatic, false);
  EXPECT_LT(same.kl.back(), 1e-9);
  EXPECT_EQ(same.top1_agreement(), 1.0);
  EXPECT_EQ(same.layers.back().relative, 0.0);
}

// --- octet quantize against quantizing at load --------------------------------------------------

class QuantizedDemo : public DemoModel, public ::testing::WithParamInterface<const char*> {
 protected:
  const test::TempDir dir_;
  const std::string folder_ = (dir_ / "fp8").string();
  const offline::QuantizeReport report_ = offline::quantize_checkpoint(
      {.source = kModel, .out = folder_, .scheme = scheme_named(GetParam()).format});
};

bool same_bytes(const Tensor& a, const Tensor& b) {
  return a.type == b.type && a.shape == b.shape && a.contiguous() && b.contiguous() &&
         std::memcmp(a.data, b.data, static_cast<size_t>(a.bytes())) == 0;
}

TEST_P(QuantizedDemo, HasTheBytesOfQuantizingAtLoad) {
  cpu::CpuBackend backend;
  const auto online = load(backend, fp8(GetParam()));
  const auto stored = load(backend, {.compute = model::Compute::fp8}, folder_);
  const auto a = online->linears(), b = stored->linears();
  ASSERT_EQ(a.size(), b.size());
  int64_t quantized = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const ops::Linear &x = *a[i].linear, &y = *b[i].linear;
    SCOPED_TRACE(x.name);
    ASSERT_EQ(x.name, y.name);
    EXPECT_EQ(static_cast<bool>(x.quant), static_cast<bool>(y.quant));
    EXPECT_EQ(x.input, y.input);
    EXPECT_EQ(x.when, y.when);
    if (!x.quant || !y.quant) continue;
    ++quantized;
    EXPECT_EQ(x.quant.format, y.quant.format);
    EXPECT_TRUE(same_bytes(x.quant.codes, y.quant.codes));
    EXPECT_TRUE(same_bytes(x.quant.scales, y.quant.scales));
  }
  EXPECT_EQ(quantized, static_cast<int64_t>(report_.quantized.size()));
  // Embedding and head, a fifth of this small model, stay 16-bit.
  EXPECT_LT(report_.bytes_after, report_.bytes_before * 65 / 100);

  // And so the same run, to the bit.
  const auto text = pieces("eval_docs.txt", eval::Convention::windows, 128);
  EXPECT_EQ(eval::perplexity({*online, backend}, text).nll,
            eval::perplexity({*stored, backend}, text).nll);
}

INSTANTIATE_TEST_SUITE_P(Golden, QuantizedDemo, ::testing::Values("fp8_channel", "fp8_block"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace octet::golden
