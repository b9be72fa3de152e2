// Decode attention over long contexts on the CPU, FP8 cache against BF16 cache in turns: time of
// one row of queries a sequence, and what the FP8 cache gains. Probes and kernels of a machine that
// is shared drift alike, so only ratios within one run mean anything.
//
//   octet_bench_attention [--context 8192] [--threads N] [--rounds N] [--sequences N]
//                         [--layers N] [--shape WORD]
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstring>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "backends/cpu/cpu_backend.h"
#include "numerics/attention_rule.h"

namespace octet::cpu {
namespace {

constexpr int64_t kBlockTokens = 16;

struct Heads {
  const char* name;
  int64_t heads, kv_heads, dim, rope;  // rope > 0: MLA, whose dim is that of the latent
};
constexpr Heads kShapes[] = {
    {"gqa 32/8 x 64, llama-3.2-1b", 32, 8, 64, 0},
    {"gqa 9/3 x 64, SmolLM2-135M", 9, 3, 64, 0},
    {"gqa 32/8 x 128, llama-3.1-8b", 32, 8, 128, 0},
    {"mla 16 x 512 + 64, DeepSeek-V2-Lite", 16, 1, 512, 64},
    {"mla 6 x 128 + 32, the demo model", 6, 1, 128, 32},
};

struct Options {
  int64_t context = 8192, sequences = 1;
  int64_t layers = 0;  // that take turns; 0: as many as no cache of a core holds
  int threads = default_thread_count(), rounds = 15;
  std::string shape;  // only shapes whose names contain it
};

// The cache of one layer and what attends to it. Values are random codes below 1 in magnitude, or
// their neighbours in BF16.
class Layer {
 public:
  Layer(const Heads& shape, const Options& options, bool fp8) : shape_(shape) {
    const int64_t each = (options.context + kBlockTokens - 1) / kBlockTokens;
    const int64_t blocks = each * options.sequences;
    const DType type = fp8 ? DType::e4m3 : DType::bf16;
    std::mt19937_64 random(1);
    const auto fill = [&](DType of, octet::Shape dims) {
      buffers_.push_back(host_buffer(static_cast<size_t>(dims.count()) * size_of(of)));
      auto* words = static_cast<uint64_t*>(buffers_.back().data());
      for (size_t i = 0; i < buffers_.back().bytes() / 8; ++i) {
        words[i] = of == DType::e4m3 ? random() & 0xB7B7B7B7B7B7B7B7ull
                                     : (random() & 0x807F807F807F807Full) | 0x3F003F003F003F00ull;
      }
      return buffers_.back().tensor(of, dims);
    };
    const auto scales = [&](octet::Shape dims) {
      buffers_.push_back(host_buffer(static_cast<size_t>(dims.count()) * 4));
      std::fill_n(static_cast<float*>(buffers_.back().data()), dims.count(), 0.5f);
      return buffers_.back().tensor(DType::f32, dims);
    };
    if (shape.rope > 0) {
      mla_.latent = fill(type, {blocks, kBlockTokens, shape.dim});
      mla_.rope = fill(DType::bf16, {blocks, kBlockTokens, shape.rope});
      if (fp8) {
        mla_.format = {Code::e4m3, {1, 128}, ScaleType::f32};
        mla_.latent_scale = scales({blocks, kBlockTokens, (shape.dim + 127) / 128});
      }
    } else {
      gqa_.k = fill(type, {blocks, kBlockTokens, shape.kv_heads, shape.dim});
      gqa_.v = fill(type, {blocks, kBlockTokens, shape.kv_heads, shape.dim});
      if (fp8) {
        gqa_.k_scale = scales({blocks, shape.kv_heads});
        gqa_.v_scale = scales({blocks, shape.kv_heads});
      }
    }
    spec_.fp8 = fp8;
    spec_.scale = 0.1f;
    const int64_t rows = options.sequences;
    q_ = fill(DType::bf16, {rows, shape.heads, shape.dim});
    if (shape.rope > 0) q_pe_ = fill(DType::bf16, {rows, shape.heads, shape.rope});
    out_ = fill(DType::bf16, {rows, shape.heads, shape.dim});
    batch_.rows = rows;
    batch_.max_context = options.context;
    buffers_.push_back(host_buffer(static_cast<size_t>(blocks) * 4));
    batch_.block_table = buffers_.back().tensor(DType::i32, {rows, each});
    // Blocks in any order, as a server's are.
    auto* ids = batch_.block_table.as<int32_t>();
    for (int64_t i = 0; i < blocks; ++i) ids[i] = static_cast<int32_t>(i);
    std::shuffle(ids, ids + blocks, random);
    for (int64_t s = 0; s < rows; ++s) {
      batch_.sequences.push_back({s, 1, options.context - 1});
    }
  }

  void run(CpuBackend& backend) const {
    if (shape_.rope > 0) {
      backend.mla_attention(q_, q_pe_, mla_, batch_, spec_, out_, {});
    } else {
      backend.attention(q_, gqa_, batch_, spec_, out_, {});
    }
  }

 private:
  Heads shape_;
  std::vector<Buffer> buffers_;
  ops::GqaCache gqa_;
  ops::MlaCache mla_;
  ops::AttentionSpec spec_;
  ops::Batch batch_;
  Tensor q_, q_pe_, out_;
};

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void bench(CpuBackend& backend, const Heads& shape, const Options& options) {
  std::vector<Layer> layers[2];
  const int64_t values = shape.kv_heads * shape.dim * (shape.rope > 0 ? 1 : 2) + 2 * shape.rope;
  const int64_t cold =
      std::clamp<int64_t>((64 << 20) / (options.context * options.sequences * values), 2, 32);
  const int64_t count = options.layers > 0 ? options.layers : cold;
  for (int64_t i = 0; i < count; ++i) {
    for (const bool fp8 : {false, true}) layers[fp8].emplace_back(shape, options, fp8);
  }
  std::vector<double> us[2];
  for (int round = 0; round < options.rounds; ++round) {
    for (const bool fp8 : {round % 2 == 0, round % 2 != 0}) {
      for (const Layer& layer : layers[fp8]) {
        const auto start = std::chrono::steady_clock::now();
        layer.run(backend);
        const std::chrono::duration<double, std::micro> spent =
            std::chrono::steady_clock::now() - start;
        if (round > 0) us[fp8].push_back(spent.count());
      }
    }
  }
  const double bf16 = median(us[0]), fp8 = median(us[1]);
  fmt::print("{:<38} context {:<6} bf16 {:>8.1f} us   fp8 {:>8.1f} us   {:.2f} times as fast\n",
             shape.name, options.context, bf16, fp8, bf16 / fp8);
  std::fflush(stdout);
}

int main(int argc, char** argv) {
  Options options;
  CLI::App app("decode attention, FP8 against BF16");
  app.add_option("--context", options.context, "tokens");
  app.add_option("--sequences", options.sequences, "sequences with one query each");
  app.add_option("--layers", options.layers,
                 "that take turns; 1 with a short context stays in cache");
  app.add_option("--threads", options.threads);
  app.add_option("--rounds", options.rounds);
  app.add_option("--shape", options.shape, "only shapes whose names contain this");
  CLI11_PARSE(app, argc, argv);
  CpuBackend backend({.threads = options.threads});
  fmt::print("{}\n", backend.info().name);
  for (const Heads& shape : kShapes) {
    if (std::string_view(shape.name).find(options.shape) != std::string_view::npos)
      bench(backend, shape, options);
  }
  return 0;
}

}  // namespace
}  // namespace octet::cpu

int main(int argc, char** argv) {
  return octet::cpu::main(argc, argv);
}
