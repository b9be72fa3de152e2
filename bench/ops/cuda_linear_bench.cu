// The CUDA linears of few rows against what the memory gives in the same minute.
//
// Each case is checked first against a slow kernel that sums in FP64, then timed as a CUDA graph of
// launches that rotate over copies of the weights, more than the L2 holds, with programmatic
// dependent launch as in a step of the engine. In each round every case runs once, and so does a
// probe that only reads; a case's share is the median over the rounds of its rate over the probe's.
//
//   octet_bench_cuda [--m 1,8,32] [--shape 8b.qkv,...] [--form
//   channel,block,bf16,weights,quantizes]
//                    [--kernel NAME] [--variants] [--rounds N] [--json FILE]
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "backends/cuda/kernels/gemm_library.h"
#include "backends/cuda/kernels/launch.cuh"
#include "backends/cuda/kernels/linear_rows.h"
#include "backends/cuda/kernels/linear_thin.h"
#include "backends/cuda/kernels/linear_wgmma.h"
#include "backends/cuda/kernels/ops.h"
#include "cuda_linear_kernels.cuh"
#include "cuda_linear_variants.h"

namespace octet::cuda {
namespace {

struct Options {
  std::vector<int64_t> m{1, 2, 4, 8, 16, 32};
  std::vector<std::string> shapes, forms;
  std::string kernel = "thin", json;
  int rounds = 9;
  bool variants = false;
};

// --- cases -----------------------------------------------------------------------------

struct DeviceMemory {
  char* data = nullptr;
  size_t bytes = 0;
  explicit DeviceMemory(size_t size) : bytes(size) {
    check(cudaMalloc(reinterpret_cast<void**>(&data), size), "cudaMalloc");
  }
  ~DeviceMemory() { cudaFree(data); }
  DeviceMemory(const DeviceMemory&) = delete;
};

struct Shape {
  const char* name;
  std::vector<int64_t> n;
  int64_t k;
};
const std::vector<Shape> kShapes = {
    {"8b.qkv", {4096, 1024, 1024}, 4096},
    {"8b.o", {4096}, 4096},
    {"8b.gate_up", {14336, 14336}, 4096},
    {"8b.down", {4096}, 14336},
    {"8b.kv", {1024}, 4096},
    {"70b.qkv", {8192, 1024, 1024}, 8192},
    {"70b.o", {8192}, 8192},
    {"70b.gate_up", {28672, 28672}, 8192},
    {"70b.down", {8192}, 28672},
    {"8b.head", {128256}, 4096},
};
const std::vector<const char*> kForms = {"channel", "block", "bf16", "weights", "quantizes"};

// Memory that all cases share.
struct Pool {
  DeviceMemory codes{size_t{6} << 30}, halves{size_t{4} << 30}, scales{size_t{64} << 20},
      x_codes{size_t{64} * 32768}, x_halves{size_t{128} * 32768}, x_scales{size_t{1} << 20},
      out{size_t{32} << 20}, workspace{size_t{256} << 20}, result{256};
};

// One launch: the weights of a shape in one place of the pool.
struct Launch {
  std::vector<ops::Linear> weights;
  std::vector<Tensor> outs;
  ops::Activation x;
  int64_t bytes = 0;
};

struct Case {
  std::string shape, form, variant;
  int64_t m = 1, n = 0, k = 0, bytes = 0;  // bytes of weights of one launch (or of all, of a layer)
  int launches = 0;                        // of the graph
  double error = 0;
  ThinTuning tuning;
  WgmmaTuning wgmma;
  std::vector<Launch> places;  // that the launches rotate over
  cudaGraphExec_t graph = nullptr;
  std::vector<double> us, share;
};

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values.empty() ? 0.0 : values[values.size() / 2];
}

class Bench {
 public:
  explicit Bench(const Options& options) : options_(options) {
    context_.caps = open_device(0);
    check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate");
    context_.stream = stream_;
    context_.workspace = {pool_.workspace.data, pool_.workspace.bytes};
    gemm_ = std::make_unique<GemmLibrary>(stream_);
    check(cudaMalloc(&counters_.data, 2 * sizeof(int) * LaunchCounters::kPairs), "cudaMalloc");
    check(cudaMemset(counters_.data, 0, 2 * sizeof(int) * LaunchCounters::kPairs), "cudaMemset");
    context_.counters = &counters_;
    context_.gemm = gemm_.get();
    for (const auto rows : {thin_rows(), wgmma_rows(), cublaslt_rows(), generic_rows()}) {
      for (const LinearRow& row : rows) {
        if (row.name == options.kernel) row_ = &row;
      }
    }
    if (!row_) throw Fault("no kernel " + options.kernel);
    check(cudaEventCreate(&begin_), "cudaEventCreate");
    check(cudaEventCreate(&end_), "cudaEventCreate");
    const int grid = context_.caps.sms * 8;
    fill_codes<<<grid, 256, 0, stream_>>>(reinterpret_cast<uint32_t*>(pool_.codes.data),
                                          static_cast<int64_t>(pool_.codes.bytes / 4), 1);
    fill_bf16<<<grid, 256, 0, stream_>>>(reinterpret_cast<__nv_bfloat16*>(pool_.halves.data),
                                         static_cast<int64_t>(pool_.halves.bytes / 2), 2);
    fill_scales<<<grid, 256, 0, stream_>>>(reinterpret_cast<float*>(pool_.scales.data),
                                           static_cast<int64_t>(pool_.scales.bytes / 4), 3);
    fill_codes<<<grid, 256, 0, stream_>>>(reinterpret_cast<uint32_t*>(pool_.x_codes.data),
                                          static_cast<int64_t>(pool_.x_codes.bytes / 4), 4);
    fill_bf16<<<grid, 256, 0, stream_>>>(reinterpret_cast<__nv_bfloat16*>(pool_.x_halves.data),
                                         static_cast<int64_t>(pool_.x_halves.bytes / 2), 5);
    fill_scales<<<grid, 256, 0, stream_>>>(reinterpret_cast<float*>(pool_.x_scales.data),
                                           static_cast<int64_t>(pool_.x_scales.bytes / 4), 6);
    check(cudaStreamSynchronize(stream_), "filling");
  }

  void run() {
    for (const Shape& shape : kShapes) {
      for (const std::string form : kForms) {
        if (!wanted(shape, form)) continue;
        for (const int64_t m : options_.m) {
          if (form == "quantizes" && m > 8) continue;
          if (options_.variants) {
            add_variants(shape, form, m);
          } else {
            add(shape, form, m, "", {});
          }
        }
      }
    }
    if (!options_.variants) {
      for (const int64_t m : options_.m) {
        add_layers("8b.layer", {0, 1, 2, 3}, m);
        add_layers("70b.layer", {5, 6, 7, 8}, m);
      }
    }
    for (Case& c : cases_) capture(c);
    measure();
    print();
  }

 private:
  static bool named(const std::vector<std::string>& names, const std::string& name) {
    return std::ranges::find(names, name) != names.end();
  }
  bool wanted(const Shape& shape, const std::string& form) const {
    const std::string name = shape.name;
    if (!options_.shapes.empty() && !named(options_.shapes, name)) return false;
    if (name == "8b.head") return form == "bf16" && !options_.variants;
    if (!options_.forms.empty()) return named(options_.forms, form);
    if (options_.variants) return form == "channel" && name != "8b.kv";
    if (form == "channel") return true;
    if (name.starts_with("70b") || name == "8b.kv") return false;
    return form != "quantizes" || name == "8b.o";
  }

  // The weights of `shape` at `offset` bytes of the pool, which moves behind them.
  Launch place(const Shape& shape, const std::string& form, int64_t m, size_t& offset) {
    const bool codes = form != "bf16", block = form == "block";
    DeviceMemory& pool = codes ? pool_.codes : pool_.halves;
    Launch launch;
    int64_t bytes = 0;
    for (const int64_t n : shape.n) bytes += n * shape.k * (codes ? 1 : 2);
    if (offset + static_cast<size_t>(bytes) > pool.bytes) offset = 0;
    size_t scale_offset = (offset / 128) % (pool_.scales.bytes / 2) / 256 * 256;
    char* out = pool_.out.data;
    const QuantFormat weight{Code::e4m3, block ? grids::block128 : grids::row, ScaleType::f32},
        input{Code::e4m3, block ? grids::group128 : grids::row, ScaleType::f32};
    for (const int64_t n : shape.n) {
      ops::Linear w;
      w.name = shape.name;
      w.out = n;
      w.in = shape.k;
      if (codes) {
        w.quant.format = weight;
        w.quant.codes = Tensor(pool.data + offset, DType::e4m3, {n, shape.k});
        const ScaleShape cells = scale_shape(weight.grid, n, shape.k);
        w.quant.scales =
            Tensor(pool_.scales.data + scale_offset, DType::f32, {cells.rows, cells.cols});
        scale_offset += static_cast<size_t>(cells.count()) * 4;
        if (form != "weights") w.input = input;
      } else {
        w.plain = Tensor(pool.data + offset, DType::bf16, {n, shape.k});
      }
      offset += static_cast<size_t>(n * shape.k * (codes ? 1 : 2));
      launch.weights.push_back(w);
      const DType type = n > 100000 ? DType::f32 : DType::bf16;
      launch.outs.push_back(Tensor(out, type, {m, n}));
      out += static_cast<size_t>(m * n) * size_of(type);
    }
    if (form == "channel" || block) {
      launch.x.quant.format = input;
      launch.x.quant.codes = Tensor(pool_.x_codes.data, DType::e4m3, {m, shape.k});
      const ScaleShape cells = scale_shape(input.grid, m, shape.k);
      launch.x.quant.scales = Tensor(pool_.x_scales.data, DType::f32, {cells.rows, cells.cols});
    } else {
      launch.x.plain = Tensor(pool_.x_halves.data, DType::bf16, {m, shape.k});
    }
    launch.bytes = bytes;
    return launch;
  }

  Case make(const Shape& shape, const std::string& form, int64_t m) {
    Case c;
    c.shape = shape.name;
    c.form = form;
    c.m = m;
    c.k = shape.k;
    for (const int64_t n : shape.n) c.n += n;
    // Five times the L2, and two places at least.
    size_t offset = 0;
    int64_t total = 0;
    while (c.places.size() < 2 || total < 5 * context_.caps.l2_bytes) {
      c.places.push_back(place(shape, form, m, offset));
      total += c.places.back().bytes;
    }
    c.bytes = c.places[0].bytes;
    c.launches =
        static_cast<int>(std::clamp(1500.0 / (static_cast<double>(c.bytes) / 4.2e6), 4.0, 240.0));
    return c;
  }

  void launch(const Launch& l, const ThinTuning& tuning, const WgmmaTuning& wgmma) {
    std::vector<const ops::Linear*> ws;
    for (const ops::Linear& w : l.weights) ws.push_back(&w);
    if (const auto products = thin_products(row_->name)) {
      linear_thin(context_, *products, l.x, ws, l.outs, tuning);
    } else if (row_->name == "wgmma") {
      linear_wgmma(context_, l.x, ws, l.outs, wgmma);
    } else {
      row_->launch(context_, l.x, ws, l.outs);
    }
  }

  std::vector<char> outputs(const Launch& l) {
    check(cudaMemsetAsync(pool_.out.data, 0xFF, pool_.out.bytes, stream_), "cudaMemset");
    launch(l, {}, {});
    std::vector<char> bytes(static_cast<size_t>(l.outs[0].bytes()));
    check(cudaMemcpyAsync(bytes.data(), l.outs[0].data, bytes.size(), cudaMemcpyDeviceToHost,
                          stream_),
          "cudaMemcpy");
    check(cudaStreamSynchronize(stream_), "outputs");
    return bytes;
  }

  // A kernel that quantizes x by itself must give the bits that it gives for the quantizer's codes:
  // 0 if it does.
  double difference_of(const Case& c) {
    Launch coded = c.places[0];
    coded.x.quant.format = *coded.weights[0].input;
    coded.x.quant.codes = Tensor(pool_.x_codes.data, DType::e4m3, {c.m, c.k});
    coded.x.quant.scales = Tensor(pool_.x_scales.data, DType::f32, {c.m, 1});
    quantize(context_, coded.x.plain, coded.x.quant, {});
    return outputs(coded) == outputs(c.places[0]) ? 0.0 : INFINITY;
  }

  // The greatest share of the error budget, over the outputs of the first place.
  double error_of(const Case& c) {
    const Launch& l = c.places[0];
    check(cudaMemsetAsync(pool_.result.data, 0, 4, stream_), "cudaMemset");
    check(cudaMemsetAsync(pool_.out.data, 0xFF, pool_.out.bytes, stream_), "cudaMemset");
    launch(l, c.tuning, c.wgmma);
    check(cudaStreamSynchronize(stream_), c.shape.c_str());
    for (size_t i = 0; i < l.weights.size(); ++i) {
      const ops::Linear& w = l.weights[i];
      const bool coded_x = static_cast<bool>(l.x.quant);
      Reference r{};
      r.w = w.quant ? w.quant.codes.data : w.plain.data;
      r.fp8_sums = row_->reduction_id.starts_with("fp8_mma");
      r.w_codes = static_cast<bool>(w.quant);
      r.w_scale = w.quant ? w.quant.scales.as<const float>() : nullptr;
      r.x = coded_x ? l.x.quant.codes.data : l.x.plain.data;
      r.x_codes = coded_x;
      r.x_scale = coded_x ? l.x.quant.scales.as<const float>() : nullptr;
      r.n = w.out;
      r.k = w.in;
      const bool block = w.quant && w.quant.format.grid == grids::block128;
      r.w_scale_cols = w.quant ? w.quant.scales.cols() : 0;
      r.x_scale_cols = coded_x ? l.x.quant.scales.cols() : 0;
      r.w_cell_rows = block ? 128 : 1;
      r.w_cell_cols = r.x_cell_cols = block ? 128 : 1 << 30;
      // Some of the outputs, where all would take long; every tile position comes up.
      const int64_t step = w.out * w.in * c.m > int64_t{1} << 30 ? 7 : 1;
      const dim3 grid(static_cast<unsigned>((w.out + 8 * step - 1) / (8 * step)),
                      static_cast<unsigned>(c.m));
      auto* const worst = reinterpret_cast<uint32_t*>(pool_.result.data);
      if (l.outs[i].type == DType::bf16) {
        reference_kernel<<<grid, 256, 0, stream_>>>(r, l.outs[i].as<const __nv_bfloat16>(), w.out,
                                                    step, worst);
      } else {
        reference_kernel<<<grid, 256, 0, stream_>>>(r, l.outs[i].as<const float>(), w.out, step,
                                                    worst);
      }
    }
    float worst = 0;
    check(cudaMemcpyAsync(&worst, pool_.result.data, 4, cudaMemcpyDeviceToHost, stream_),
          "cudaMemcpy");
    check(cudaStreamSynchronize(stream_), "reference");
    return static_cast<double>(worst);
  }

  void add(const Shape& shape, const std::string& form, int64_t m, const std::string& variant,
           const ThinTuning& tuning, const WgmmaTuning& wgmma = {}) {
    Case c = make(shape, form, m);
    c.variant = variant;
    c.tuning = tuning;
    c.wgmma = wgmma;
    try {
      c.error = form == "quantizes" ? difference_of(c) : error_of(c);
    } catch (const Fault& fault) {
      // A tuning that does not fit, or worse: then all that follows fails as well.
      check(cudaStreamSynchronize(stream_), "after a fault");
      if (variant.empty())
        std::printf("%s %s m=%ld: %s\n", c.shape.c_str(), form.c_str(), m, fault.what());
      return;
    }
    cases_.push_back(std::move(c));
  }

  void add_variants(const Shape& shape, const std::string& form, int64_t m) {
    add(shape, form, m, "plan", {});
    if (row_->name == "wgmma") return add_wgmma_variants(shape, form, m);
    if (row_->name == "thin_codes") return add_codes_variants(shape, form, m);
    if (form != "channel") return;
    const int columns = m <= 8 ? 1 : m <= 16 ? 2 : 4;
    for (const int warps : {4, 8, 16}) {
      for (const int blocks : {1, 2}) {
        for (const int kib : {48, 96, 160}) {
          if (blocks == 2 && kib > 96) continue;
          for (const int split : {1, 2, 4, 8}) {
            const int64_t x_bytes = m * shape.k / split;
            if (x_bytes > 131072 || (split > 1 && x_bytes * 2 < 16384)) continue;
            const ThinTuning tuning{.warps = warps,
                                    .stages = kib * 8 / warps / 16,
                                    .split = split,
                                    .blocks_per_sm = blocks,
                                    .kernel = thin_variant(warps, columns)};
            if (tuning.stages < 2) continue;
            char name[64];
            std::snprintf(name, sizeof name, "w%d b%d %dK s%d", warps, blocks, kib, split);
            add(shape, form, m, name, tuning);
          }
        }
      }
    }
  }

  void add_codes_variants(const Shape& shape, const std::string& form, int64_t m) {
    for (const int blocks : {1, 2, 3}) {
      for (const int kib : {48, 64, 96, 160}) {  // of a block
        for (const int flying : {32, 48, 96, 160}) {
          if (kib * blocks > 192 || flying > kib) continue;
          char name[64];
          std::snprintf(name, sizeof name, "b%d %dK f%dK", blocks, kib, flying);
          add(shape, form, m, name,
              {.stages = kib / 16, .blocks_per_sm = blocks, .flying = flying / 16});
        }
      }
    }
  }

  void add_wgmma_variants(const Shape& shape, const std::string& form, int64_t m) {
    for (const int split : {1, 2, 4, 8}) {
      for (const int tiles : {1, 2, 3, 4, 5}) {
        if (split > 1 && tiles > 1) continue;
        for (const int kib : {64, 96, 160}) {
          for (const int depth : {1, 2, 4}) {
            char name[64];
            std::snprintf(name, sizeof name, "s%d t%d %dK d%d", split, tiles, kib, depth);
            add(shape, form, m, name, {}, WgmmaTuning{split, tiles, depth, kib * 1024});
          }
        }
      }
    }
  }

  // All linears of a layer, one after another: what a step of a model has, without what lies
  // between.
  void add_layers(const std::string& name, const std::vector<size_t>& shapes, int64_t m) {
    if (!options_.shapes.empty() && !named(options_.shapes, name)) return;
    Case c;
    c.shape = name;
    c.form = "channel";
    c.m = m;
    size_t offset = 0;
    int64_t total = 0;
    while (total < 5 * context_.caps.l2_bytes || c.places.size() / shapes.size() < 4) {
      for (const size_t i : shapes) {
        c.places.push_back(place(kShapes[i], c.form, m, offset));
        total += c.places.back().bytes;
      }
    }
    c.bytes = total;
    c.launches = static_cast<int>(c.places.size());
    // Kernels are loaded when they run first, which a capture must not do.
    for (const Launch& place : c.places) launch(place, c.tuning, c.wgmma);
    check(cudaStreamSynchronize(stream_), c.shape.c_str());
    cases_.push_back(std::move(c));
  }

  void capture(Case& c) {
    check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "begin capture");
    for (int i = 0; i < c.launches; ++i)
      launch(c.places[static_cast<size_t>(i) % c.places.size()], c.tuning, c.wgmma);
    cudaGraph_t graph = nullptr;
    check(cudaStreamEndCapture(stream_, &graph), "end capture");
    check(cudaGraphInstantiate(&c.graph, graph, 0), "instantiate");
    cudaGraphDestroy(graph);
    check(cudaGraphLaunch(c.graph, stream_), "cudaGraphLaunch");
    check(cudaStreamSynchronize(stream_), "warming up");
  }

  template <typename Body>
  double time_us(Body body) {
    check(cudaEventRecord(begin_, stream_), "cudaEventRecord");
    body();
    check(cudaEventRecord(end_, stream_), "cudaEventRecord");
    check(cudaEventSynchronize(end_), "cudaEventSynchronize");
    float ms = 0;
    check(cudaEventElapsedTime(&ms, begin_, end_), "cudaEventElapsedTime");
    return static_cast<double>(ms) * 1e3;
  }
  // GB/s of the probe over the whole pool of codes.
  double probe() {
    const auto bytes = static_cast<int64_t>(pool_.codes.bytes);
    double best = 0;
    for (const int per_sm : {2, 4}) {
      const double us = time_us([&] {
        read_kernel<<<context_.caps.sms * per_sm, 512, 0, stream_>>>(
            reinterpret_cast<const uint4*>(pool_.codes.data), bytes / 16,
            reinterpret_cast<uint32_t*>(pool_.result.data));
      });
      best = std::max(best, static_cast<double>(bytes) / us / 1e3);
    }
    return best;
  }

  void measure() {
    probe();
    for (int round = 0; round < options_.rounds; ++round) {
      double rate = probe();
      probes_.push_back(rate);
      for (size_t i = 0; i < cases_.size(); ++i) {
        Case& c = cases_[i];
        // The same again where there are many, lest the probe be of another minute.
        if (i % 32 == 31) rate = probe();
        const double us =
            time_us([&] { check(cudaGraphLaunch(c.graph, stream_), "cudaGraphLaunch"); });
        const bool layer = c.n == 0;
        c.us.push_back(layer ? us : us / c.launches);
        c.share.push_back(static_cast<double>(c.bytes) / c.us.back() / 1e3 / rate);
      }
    }
  }

  void print() {
    const double rate = median(probes_);
    std::printf("%s, %d SMs; R = %.0f GB/s; error = share of the budget of FP32 sums (1 = limit)\n",
                context_.caps.name.c_str(), context_.caps.sms, rate);
    std::printf("%-12s %-10s %3s %-16s %9s %7s %6s %7s\n", "shape", "form", "m", "variant", "us",
                "GB/s", "of R", "error");
    std::vector<const Case*> shown;
    for (const Case& c : cases_) shown.push_back(&c);
    if (options_.variants) keep_best(shown);
    for (const Case* c : shown) {
      const double us = median(c->us);
      std::printf("%-12s %-10s %3ld %-16s %9.2f %7.0f %6.3f %7.3f\n", c->shape.c_str(),
                  c->form.c_str(), c->m, c->variant.c_str(), us,
                  static_cast<double>(c->bytes) / us / 1e3, median(c->share), c->error);
    }
    if (!options_.json.empty()) write_json(rate);
  }

  // Of each problem, the plan and the five best variants.
  static void keep_best(std::vector<const Case*>& cases) {
    const auto problem = [](const Case* c) { return std::tuple(c->shape, c->form, c->m); };
    std::stable_sort(cases.begin(), cases.end(), [&](const Case* a, const Case* b) {
      return std::tuple(problem(a), median(a->us)) < std::tuple(problem(b), median(b->us));
    });
    std::vector<const Case*> kept;
    int taken = 0;
    for (const Case* c : cases) {
      if (kept.empty() || problem(kept.back()) != problem(c)) taken = 0;
      if (taken++ < 5 || c->variant == "plan") kept.push_back(c);
    }
    cases = kept;
  }

  void write_json(double rate) {
    std::FILE* const file = std::fopen(options_.json.c_str(), "w");
    if (!file) throw Fault("cannot write " + options_.json);
    std::fprintf(file, "{\"device\": \"%s\", \"probe_gbs\": %.1f, \"rounds\": %d, \"cases\": [",
                 context_.caps.name.c_str(), rate, options_.rounds);
    const char* separator = "\n";
    for (const Case& c : cases_) {
      const double us = median(c.us);
      std::fprintf(file,
                   "%s{\"shape\": \"%s\", \"form\": \"%s\", \"m\": %ld, \"n\": %ld, \"k\": %ld, "
                   "\"variant\": \"%s\", \"us\": %.3f, \"gbs\": %.1f, \"share\": %.4f, "
                   "\"error\": %.4f}",
                   separator, c.shape.c_str(), c.form.c_str(), c.m, c.n, c.k, c.variant.c_str(), us,
                   static_cast<double>(c.bytes) / us / 1e3, median(c.share), c.error);
      separator = ",\n";
    }
    std::fprintf(file, "\n]}\n");
    std::fclose(file);
  }

  Options options_;
  KernelContext context_;
  LaunchCounters counters_;
  Pool pool_;
  std::unique_ptr<GemmLibrary> gemm_;
  const LinearRow* row_ = nullptr;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
  std::vector<Case> cases_;
  std::vector<double> probes_;
};

}  // namespace
}  // namespace octet::cuda

int main(int argc, char** argv) {
  octet::cuda::Options options;
  CLI::App app("CUDA linears of few rows against a read probe");
  app.add_option("--m", options.m, "rows of x")->delimiter(',');
  app.add_option("--shape", options.shapes, "8b.qkv, ..., 70b.down, 8b.head, 8b.layer")
      ->delimiter(',');
  app.add_option("--form", options.forms, "channel, block, bf16, weights, quantizes")
      ->delimiter(',');
  app.add_option("--kernel", options.kernel, "row of the table: thin, cublaslt, ..., generic");
  app.add_option("--rounds", options.rounds, "rounds; medians are taken over them");
  app.add_option("--json", options.json, "file for the results");
  app.add_flag("--variants", options.variants, "compare warps, ring, split and blocks an SM");
  CLI11_PARSE(app, argc, argv);
  try {
    octet::cuda::Bench(options).run();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
