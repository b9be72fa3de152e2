// Whether a latent quantizes better than the K and V that it stands for: docs/CLAIMS.md. Both are
// the demo model's own, so that nothing else differs.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "backends/cpu/cpu_backend.h"
#include "backends/probe/forwarding_backend.h"
#include "base/mapped_file.h"
#include "engine/session.h"
#include "model/binder.h"
#include "model/model.h"
#include "numerics/quantize.h"
#include "text/tokenizer.h"

namespace octet::golden {
namespace {

constexpr int64_t kTokens = 256;

// What each layer writes to its cache, and the weight that makes K and V of it.
struct Layer {
  std::vector<float> latent, kv_b;  // [kTokens, lora], [heads * (nope + v), lora]
  int64_t lora = 0;
};

class Listener final : public probe::ForwardingBackend {
 public:
  using ForwardingBackend::ForwardingBackend;
  void mla_kv_write(const Tensor& latent, const Tensor& k_pe, const ops::MlaCache& cache,
                    const ops::Batch& batch) override {
    layers.push_back({.latent = model::to_float(latent), .kv_b = {}, .lora = latent.cols()});
    inner().mla_kv_write(latent, k_pe, cache, batch);
  }
  void mla_absorb(const Tensor& q, const ops::Linear& kv_b, int64_t nope,
                  const Tensor& out) override {
    layers.back().kv_b = model::to_float(kv_b.plain);
    inner().mla_absorb(q, kv_b, nope, out);
  }
  std::vector<Layer> layers;
};

std::vector<float> rounded(std::vector<float> x, int64_t cols, const QuantFormat& format) {
  const auto rows = static_cast<int64_t>(x.size()) / cols;
  std::vector<uint8_t> codes(x.size());
  std::vector<float> scales(static_cast<size_t>(scale_shape(format.grid, rows, cols).count()));
  quantize(x, rows, cols, format, codes, scales);
  dequantize(codes, rows, cols, format, scales, x);
  return x;
}

// K (without RoPE's part) and V of all heads: [kTokens, heads * (nope + v)].
std::vector<float> expand(const Layer& layer, const std::vector<float>& latent) {
  const auto lora = static_cast<size_t>(layer.lora), width = layer.kv_b.size() / lora;
  std::vector<float> out(static_cast<size_t>(kTokens) * width);
  for (size_t t = 0; t < static_cast<size_t>(kTokens); ++t) {
    for (size_t i = 0; i < width; ++i) {
      float sum = 0;
      for (size_t c = 0; c < lora; ++c) sum += layer.kv_b[i * lora + c] * latent[t * lora + c];
      out[t * width + i] = sum;
    }
  }
  return out;
}

double relative_error(const std::vector<float>& x, const std::vector<float>& exact) {
  double error = 0, energy = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    error += std::pow(double{x[i]} - double{exact[i]}, 2);
    energy += std::pow(double{exact[i]}, 2);
  }
  return std::sqrt(error / energy);
}

TEST(LatentCache, IsNoBetterRoundedThanTheKeysAndValuesOfIt) {
  const std::string folder = std::string(OCTET_SOURCE_DIR) + "/models/octet-demo";
  cpu::CpuBackend cpu({.threads = 2});
  Listener listener(cpu);
  const auto model = model::load_model(model::read_config(folder), model::open_weights(folder), cpu,
                                       {.compute = model::Compute::fp32});
  std::vector<int32_t> ids = text::Tokenizer::load(folder).encode(
      read_text(folder + "/eval_code.txt"), {.add_special_tokens = false});
  ids.resize(kTokens);
  engine::Session session(*model, listener,
                          {.max_tokens = kTokens, .chunk = kTokens, .logits_rows = 1});
  session.extend(0, ids);
  ASSERT_EQ(static_cast<int64_t>(listener.layers.size()), model->config().layers);
  // The cache's formats: a scale for a token and 128 latents; for a token and head of K, and of V.
  const auto head = static_cast<int32_t>(std::get<model::Mla>(model->config().attention).v);
  for (const Code code : {Code::e4m3, Code::i8}) {
    const QuantFormat latent_format{code, grids::group128, ScaleType::f32};
    const QuantFormat head_format{code, {1, head}, ScaleType::f32};
    double latent = 0, expanded = 0;
    for (const Layer& layer : listener.layers) {
      const std::vector<float> exact = expand(layer, layer.latent);
      const auto width = static_cast<int64_t>(exact.size()) / kTokens;
      latent +=
          relative_error(expand(layer, rounded(layer.latent, layer.lora, latent_format)), exact);
      expanded += relative_error(rounded(exact, width, head_format), exact);
    }
    const auto layers = static_cast<double>(listener.layers.size());
    const std::string name = code == Code::e4m3 ? "e4m3" : "int8";
    RecordProperty(name + "_latent", std::to_string(latent / layers));
    RecordProperty(name + "_expanded", std::to_string(expanded / layers));
    EXPECT_GT(latent / expanded, 0.5) << name;
    EXPECT_LT(latent / expanded, 2.0) << name;
  }
}

}  // namespace
}  // namespace octet::golden
