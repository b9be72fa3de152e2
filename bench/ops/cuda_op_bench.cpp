// What the CUDA ops that are not linears take, one by one.
//
// Each case is a CUDA graph of launches with programmatic dependent launch, as in a step of the
// engine. Activations stay in the L2; caches and weights do not: launches go through copies of
// them, as a step goes through layers. Where a case reads a cache, "of R" is its bytes over what a
// probe that only reads gets in the same minute.
//
//   octet_bench_cuda_ops [WORD...]    only cases whose name has one of the words
#include <algorithm>
#include <bit>
#include <cstdio>
#include <functional>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "backends/cuda/cuda_backend.h"
#include "backends/cuda/probe.h"

namespace octet::cuda {
namespace {

constexpr int kRounds = 5;
constexpr double kSlice = 4e-3;  // seconds of a graph, but at least 50 launches of short ones
constexpr int64_t kBlockTokens = 16;
constexpr size_t kPoolBytes = size_t{10} << 30;

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

// Device memory, taken in order and never given back.
class Arena {
 public:
  Arena(CudaBackend& backend, size_t bytes, const char* what)
      : memory_(backend.alloc(bytes, what)) {}
  Tensor take(DType type, Shape shape) {
    Tensor t(static_cast<char*>(memory_.data()) + used_, type, shape, memory_.device());
    used_ += (static_cast<size_t>(t.bytes()) + 255) / 256 * 256;
    invariant(used_ <= memory_.bytes(), "the benchmark needs more memory");
    return t;
  }
  void reset() { used_ = 0; }
  bool has(size_t bytes) const { return used_ + bytes + 4096 <= memory_.bytes(); }
  size_t used() const { return used_; }
  const Buffer& memory() const { return memory_; }

 private:
  Buffer memory_;
  size_t used_ = 0;
};

struct MlaShape {
  const char* name;
  int64_t heads, nope, rope, v, lora;
};
constexpr MlaShape kMlaShapes[] = {{"moe-95b", 64, 128, 64, 128, 512},
                                   {"v2-lite", 16, 128, 64, 128, 512}};

class Bench {
 public:
  Bench(CudaBackend& backend, std::vector<std::string> words)
      : backend_(backend),
        stream_(backend.context().stream),
        words_(std::move(words)),
        watch_(stream_),
        probe_(backend, size_t{2} << 30),
        pool_(backend, kPoolBytes, "benchmark: caches and weights"),
        activations_(backend, size_t{512} << 20, "benchmark: activations") {
    fill_pool();
  }

  void run() {
    std::printf("%s; us a launch, median of %d graphs\n", backend_.caps().name.c_str(), kRounds);
    std::printf("%-34s %5s %8s %9s %6s\n", "op", "rows", "context", "us", "of R");
    gqa();
    mla();
    elementwise();
    sampling();
  }

 private:
  // Finite codes and scales at random, from a piece that is copied over and over.
  void fill_pool() {
    std::vector<uint32_t> words(size_t{16} << 20);
    std::mt19937 random(1);
    for (uint32_t& word : words) word = random() & 0xB7B7B7B7u;  // |code| <= 0x37: below 1
    const size_t piece = words.size() * sizeof(uint32_t);
    char* const first = static_cast<char*>(pool_.memory().data());
    check(cudaMemcpyAsync(first, words.data(), piece, cudaMemcpyHostToDevice, stream_), "copying");
    for (const Arena* arena : {&pool_, &activations_}) {
      char* const to = static_cast<char*>(arena->memory().data());
      for (size_t at = arena == &pool_ ? piece : 0; at < arena->memory().bytes(); at += piece) {
        check(cudaMemcpyAsync(to + at, first, std::min(piece, arena->memory().bytes() - at),
                              cudaMemcpyDeviceToDevice, stream_),
              "copying");
      }
    }
    check(cudaStreamSynchronize(stream_), "filling");
  }

  bool wanted(const std::string& name) const {
    return words_.empty() || std::ranges::any_of(words_, [&](const std::string& word) {
             return name.find(word) != std::string::npos;
           });
  }

  template <typename T>
  Tensor put(DType type, Shape shape, const std::vector<T>& values) {
    const Tensor t = activations_.take(type, shape);
    check(cudaMemcpyAsync(t.data, values.data(), static_cast<size_t>(t.bytes()),
                          cudaMemcpyHostToDevice, stream_),
          "cudaMemcpyAsync");
    check(cudaStreamSynchronize(stream_), "copying");
    return t;
  }
  // A scale of 1 for each cell.
  Tensor ones(Arena& arena, Shape shape) {
    const Tensor t = arena.take(DType::f32, shape);
    const std::vector<float> values(static_cast<size_t>(t.count()), 1.0f);
    check(cudaMemcpyAsync(t.data, values.data(), values.size() * sizeof(float),
                          cudaMemcpyHostToDevice, stream_),
          "cudaMemcpyAsync");
    check(cudaStreamSynchronize(stream_), "copying");
    return t;
  }

  // One line. `launch(i)` enqueues launch i; `bytes`: what it reads of a cache, or 0.
  void measure(const std::string& name, int64_t rows, int64_t context, double bytes,
               const std::function<void(int)>& launch) {
    // Once outside of a capture, which loads the kernels; then an estimate from a few.
    launch(0);
    check(cudaStreamSynchronize(stream_), name.c_str());
    watch_.start();
    for (int i = 0; i < 4; ++i) launch(i);
    const double estimate = watch_.stop() / 4;
    const int launches =
        std::clamp(static_cast<int>(kSlice / estimate), estimate < 1e-4 ? 64 : 4, 512);
    check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "begin capture");
    for (int i = 0; i < launches; ++i) launch(i);
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t exec = nullptr;
    check(cudaStreamEndCapture(stream_, &graph), "end capture");
    check(cudaGraphInstantiate(&exec, graph, 0), "instantiate");
    check(cudaGraphLaunch(exec, stream_), "cudaGraphLaunch");
    check(cudaStreamSynchronize(stream_), name.c_str());
    std::vector<double> seconds, shares;
    for (int round = 0; round < kRounds; ++round) {
      const double rate = probe_.measure();  // which empties the L2, too
      watch_.start();
      check(cudaGraphLaunch(exec, stream_), "cudaGraphLaunch");
      seconds.push_back(watch_.stop() / launches);
      if (bytes > 0) shares.push_back(bytes / seconds.back() * 1e-9 / rate);
    }
    cudaGraphExecDestroy(exec);
    cudaGraphDestroy(graph);
    std::printf("%-34s %5ld %8ld %9.2f", name.c_str(), rows, context, median(seconds) * 1e6);
    if (bytes > 0) std::printf(" %6.3f", median(shares));
    std::printf("\n");
    std::fflush(stdout);
  }

  // --- attention --------------------------------------------------------------------------------

  // Sequences of `context` tokens, the last of which is this step's. Blocks lie anywhere.
  ops::Batch make_batch(int64_t sequences, int64_t context) {
    ops::Batch batch;
    const int64_t entries = (context + kBlockTokens - 1) / kBlockTokens;
    std::vector<int32_t> spans, rows, table(static_cast<size_t>(sequences * entries)), positions;
    for (int64_t i = 0; i < sequences; ++i) {
      batch.sequences.push_back({i, 1, context - 1});
      for (const int64_t value : {i, int64_t{1}, context - 1})
        spans.push_back(static_cast<int32_t>(value));
      rows.push_back(static_cast<int32_t>(i));
      positions.push_back(static_cast<int32_t>(context - 1));
    }
    std::iota(table.begin(), table.end(), 0);
    std::shuffle(table.begin(), table.end(), std::mt19937(2));
    batch.rows = sequences;
    // As the engine's buckets.
    batch.max_context = static_cast<int64_t>(
        std::bit_ceil(static_cast<uint64_t>(std::max<int64_t>(context, 1024))));
    batch.spans = put(DType::i32, {sequences, 3}, spans);
    batch.row_sequence = put(DType::i32, {sequences}, rows);
    batch.positions = put(DType::i32, {sequences}, positions);
    batch.block_table = put(DType::i32, {sequences, entries}, table);
    return batch;
  }

  // Layers of what `make` takes from the pool: beyond the L2 if 512 are, four at least if they fit.
  template <typename Make>
  auto layers_of(Make make) {
    pool_.reset();
    std::vector<decltype(make())> layers{make()};
    const size_t each = pool_.used();
    const auto enough = static_cast<size_t>(4 * backend_.caps().l2_bytes);
    while (layers.size() < 512 && pool_.has(each) && (layers.size() < 4 || pool_.used() < enough))
      layers.push_back(make());
    return layers;
  }

  void gqa() {
    constexpr int64_t kHeads = 32, kKvHeads = 8, kDim = 128;
    for (const auto& [rows, contexts] : {std::pair<int64_t, std::vector<int64_t>>{
                                             1, {1, 64, 128, 512, 1000, 4096, 8192, 32768, 131072}},
                                         {8, {1, 512, 1000, 4096, 8192, 32768}},
                                         {64, {1, 512, 1000, 4096, 8192, 32768}}}) {
      for (const int64_t context : contexts) {
        if (!wanted("rope_kv_write + attention 8b")) return;  // has all words of this part
        activations_.reset();
        const ops::Batch batch = make_batch(rows, context);
        const int64_t blocks = rows * ((context + kBlockTokens - 1) / kBlockTokens);
        const auto layers = layers_of([&] {
          ops::GqaCache cache;
          cache.k = pool_.take(DType::e4m3, {blocks, kBlockTokens, kKvHeads, kDim});
          cache.v = pool_.take(DType::e4m3, {blocks, kBlockTokens, kKvHeads, kDim});
          for (Tensor* t : {&cache.k_scale, &cache.v_scale, &cache.k_absmax, &cache.v_absmax})
            *t = ones(pool_, {blocks, kKvHeads});
          return cache;
        });
        const Tensor q = activations_.take(DType::bf16, {rows, kHeads, kDim});
        const Tensor k = activations_.take(DType::bf16, {rows, kKvHeads, kDim});
        const Tensor v = activations_.take(DType::bf16, {rows, kKvHeads, kDim});
        const Tensor out = activations_.take(DType::bf16, {rows, kHeads, kDim});
        const ops::RopeTable table{ones(activations_, {1024, kDim / 2}),
                                   ones(activations_, {1024, kDim / 2})};
        const ops::AttentionSpec spec{.scale = 0.088f, .fp8 = true, .window = 0};
        const auto layer = [&](int i) -> const ops::GqaCache& {
          return layers[static_cast<size_t>(i) % layers.size()];
        };
        const double bytes = 2.0 * static_cast<double>(rows * context * kKvHeads * kDim);
        const auto attend = [&](int i) { backend_.attention(q, layer(i), batch, spec, out, {}); };
        const auto write = [&](int i) { backend_.rope_kv_write(q, k, v, table, layer(i), batch); };
        if (wanted("attention 8b")) measure("attention 8b", rows, context, bytes, attend);
        if (context != 1 && context != 1000) continue;
        if (wanted("rope_kv_write 8b")) measure("rope_kv_write 8b", rows, context, 0, write);
        if (wanted("rope_kv_write + attention 8b")) {
          measure("rope_kv_write + attention 8b", rows, context, 0, [&](int i) {
            write(i);
            attend(i);
          });
        }
      }
    }
  }

  void mla() {
    for (const MlaShape& shape : kMlaShapes) {
      for (const int64_t rows : {1, 8, 64}) {
        const std::string suffix = std::string(" ") + shape.name;
        activations_.reset();
        const Tensor q =
            activations_.take(DType::bf16, {rows, shape.heads, shape.nope + shape.rope});
        const Tensor latent = activations_.take(DType::bf16, {rows, shape.heads, shape.lora});
        const Tensor o_latent = activations_.take(DType::bf16, {rows, shape.heads, shape.lora});
        const Tensor out = activations_.take(DType::bf16, {rows, shape.heads, shape.v});
        for (const int64_t context : {1, 1000, 8192}) {
          if (!wanted("mla_attention" + suffix)) continue;
          const ops::Batch batch = make_batch(rows, context);
          const int64_t blocks = rows * ((context + kBlockTokens - 1) / kBlockTokens);
          const auto layers = layers_of([&] {
            ops::MlaCache cache;
            cache.format = {Code::e4m3, grids::group128, ScaleType::f32};
            cache.latent = pool_.take(DType::e4m3, {blocks, kBlockTokens, shape.lora});
            cache.latent_scale = ones(pool_, {blocks, kBlockTokens, shape.lora / 128});
            cache.rope = pool_.take(DType::bf16, {blocks, kBlockTokens, shape.rope});
            return cache;
          });
          const Tensor q_pe = q.columns(shape.nope, shape.rope);
          const ops::AttentionSpec spec{.scale = 0.07f, .fp8 = true, .window = 0};
          const double bytes = static_cast<double>(rows * context) *
                               static_cast<double>(shape.lora + shape.lora / 32 + shape.rope * 2);
          measure("mla_attention" + suffix, rows, context, bytes, [&](int i) {
            backend_.mla_attention(latent, q_pe, layers[static_cast<size_t>(i) % layers.size()],
                                   batch, spec, o_latent, {});
          });
        }
        const int64_t per_head = shape.nope + shape.v;
        const bool absorb = wanted("mla_absorb" + suffix), expand = wanted("mla_expand" + suffix);
        if (!absorb && !expand) continue;
        const auto weights = layers_of([&] {
          ops::Linear w;
          w.name = "kv_b";
          w.out = shape.heads * per_head;
          w.in = shape.lora;
          w.quant.format = {Code::e4m3, grids::block128, ScaleType::f32};
          w.quant.codes = pool_.take(DType::e4m3, {w.out, w.in});
          const ScaleShape cells = scale_shape(w.quant.format.grid, w.out, w.in);
          w.quant.scales = ones(pool_, {cells.rows, cells.cols});
          return w;
        });
        const auto weight = [&](int i) -> const ops::Linear& {
          return weights[static_cast<size_t>(i) % weights.size()];
        };
        const auto bytes_of = [&](int64_t each) {
          return static_cast<double>(shape.heads * each * shape.lora);
        };
        if (absorb) {
          measure("mla_absorb" + suffix, rows, 0, bytes_of(shape.nope),
                  [&](int i) { backend_.mla_absorb(q, weight(i), shape.nope, latent); });
        }
        if (expand) {
          measure("mla_expand" + suffix, rows, 0, bytes_of(shape.v),
                  [&](int i) { backend_.mla_expand(o_latent, weight(i), shape.nope, out); });
        }
      }
    }
  }

  // --- the rest ---------------------------------------------------------------------------------

  ops::Activation both_forms(int64_t rows, int64_t cols) {
    QuantTensor quant;
    quant.format = {Code::e4m3, grids::row, ScaleType::f32};
    quant.codes = activations_.take(DType::e4m3, {rows, cols});
    quant.scales = activations_.take(DType::f32, {rows, 1});
    return {activations_.take(DType::bf16, {rows, cols}), quant};
  }

  void elementwise() {
    for (const int64_t rows : {1, 8, 64}) {
      for (const int64_t cols : {4096, 8192}) {
        activations_.reset();
        const Tensor x = activations_.take(DType::bf16, {rows, cols});
        const Tensor delta = activations_.take(DType::bf16, {rows, cols});
        const ops::NormWeight norm{activations_.take(DType::bf16, {cols})};
        const ops::Activation out = both_forms(rows, cols);
        const std::string suffix = " " + std::to_string(cols);
        if (wanted("rms_norm" + suffix))
          measure("rms_norm" + suffix, rows, 0, 0, [&](int) { backend_.rms_norm(x, norm, out); });
        if (wanted("add_rms_norm" + suffix)) {
          measure("add_rms_norm" + suffix, rows, 0, 0,
                  [&](int) { backend_.add_rms_norm(x, delta, norm, out); });
        }
        if (wanted("quantize" + suffix)) {
          measure("quantize" + suffix, rows, 0, 0,
                  [&](int) { backend_.quantize(x, out.quant, {}); });
        }
      }
      activations_.reset();
      const Tensor gate = activations_.take(DType::bf16, {rows, 14336});
      const Tensor up = activations_.take(DType::bf16, {rows, 14336});
      const ops::Activation out = both_forms(rows, 14336);
      const ops::Activation codes(out.quant);
      if (wanted("silu_mul 14336"))
        measure("silu_mul 14336", rows, 0, 0, [&](int) { backend_.silu_mul(gate, up, codes); });
    }
  }

  void sampling() {
    constexpr int64_t kVocab = 128256;
    for (const int64_t rows : {1, 8, 64}) {
      activations_.reset();
      std::vector<float> values(static_cast<size_t>(rows * kVocab));
      std::mt19937 random(3);
      std::normal_distribution<float> normal(0.0f, 3.0f);
      for (size_t i = 0; i < values.size(); ++i)
        values[i] = i < kVocab ? normal(random) : values[i - kVocab];
      const Tensor logits = put(DType::f32, {rows, kVocab}, values);
      const ops::SampleResult out{activations_.take(DType::i32, {rows}),
                                  activations_.take(DType::f32, {rows}),
                                  activations_.take(DType::i32, {rows}),
                                  {},
                                  {}};
      for (const bool greedy : {true, false}) {
        const std::string name = greedy ? "sample greedy" : "sample top_p 0.95 top_k 50";
        if (!wanted(name)) continue;
        ops::SampleRow how;
        if (!greedy) how = {.temperature = 0.8f, .top_k = 50, .top_p = 0.95f, .seed = 1};
        const std::vector<ops::SampleRow> hows(static_cast<size_t>(rows), how);
        const Tensor how_rows =
            put(DType::u8, {rows, static_cast<int64_t>(sizeof(ops::SampleRow))}, hows);
        measure(name, rows, 0, 0, [&](int) { backend_.sample(logits, how_rows, {}, out); });
      }
    }
  }

  CudaBackend& backend_;
  cudaStream_t stream_;
  std::vector<std::string> words_;
  Stopwatch watch_;
  ReadProbe probe_;
  Arena pool_, activations_;
};

}  // namespace
}  // namespace octet::cuda

int main(int argc, char** argv) {
  try {
    octet::cuda::CudaBackend backend;
    octet::cuda::Bench(backend, {argv + 1, argv + argc}).run();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
