// The CPU's linear kernels against what the machine gives at that moment. For every shape: bytes
// of W a second as a share of the read probe, and FLOPs a second as a share of the BF16 dot peak
// (vdpbf16ps from registers). Probes and kernel take turns and medians are compared, since on a
// shared machine only ratios within one run mean anything. Rates are per processor time of all
// threads rather than by the clock on the wall, so that a thread that waits for its core counts
// neither for nor against a kernel; --wall changes that.
//
//   octet_bench_ops [--m 1,4,16,512] [--w fp8,block,int8,bf16] [--kernel NAME] [--threads N]
//                   [--rounds N] [--shape NxK] [--wall] [--hot]
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstring>
#include <random>
#include <vector>

#include "backends/cpu/probe.h"
#include "backends/cpu/select.h"
#include "numerics/half.h"

namespace octet::cpu {
namespace {

struct Options {
  std::vector<int64_t> m{1, 4, 16, 512};
  std::vector<std::string> w{"fp8", "block", "int8", "bf16"};
  std::string kernel, shape;
  int threads = default_thread_count(), rounds = 7;
  bool wall = false, hot = false;
};

// Seconds by the clock on the wall, or processor time of all threads over their number.
double now(const Options& options) {
  if (options.wall) {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
  }
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return (static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9) /
         options.threads;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// Copies of one weight, more than any cache holds, so that each use reads from memory as a model's
// layers do.
struct Weights {
  Buffer buffer, scales;
  std::vector<ops::Linear> copies;

  Weights(const std::string& form, int64_t n, int64_t k, size_t total) {
    const bool codes = form != "bf16";
    const Code code = form == "int8" ? Code::i8 : Code::e4m3;
    const auto bytes = static_cast<size_t>(n * k * (codes ? 1 : 2));
    const size_t count = std::max<size_t>(1, total / bytes);
    buffer = host_buffer(bytes * count);
    // Random codes, of E4M3 without NaN; BF16 values near 0.01.
    std::mt19937_64 random(1);
    auto* words = static_cast<uint64_t*>(buffer.data());
    for (size_t i = 0; i < buffer.bytes() / 8; ++i) {
      words[i] = codes ? random() & 0xBFBFBFBFBFBFBFBFull
                       : (random() & 0x807F807F807F807Full) | 0x3C003C003C003C00ull;
    }
    const QuantFormat format{code, form == "block" ? grids::block128 : grids::row};
    const ScaleShape shape = scale_shape(format.grid, n, k);
    scales = host_buffer(static_cast<size_t>(shape.count()) * 4);
    std::fill_n(static_cast<float*>(scales.data()), shape.count(), 0.001f);
    for (size_t i = 0; i < count; ++i) {
      ops::Linear w{.name = "bench", .role = Role::mlp_down, .out = n, .in = k};
      if (codes) {
        w.quant = {buffer.tensor(dtype_of(code), {n, k}, i * bytes),
                   scales.tensor(DType::f32, {shape.rows, shape.cols}), format};
        w.input = QuantFormat{code, form == "block" ? grids::group128 : grids::row};
      } else {
        w.plain = buffer.tensor(DType::bf16, {n, k}, i * bytes);
      }
      copies.push_back(w);
    }
  }
};

void bench(const Options& options, const KernelContext& context, const ReadProbe& probe,
           const std::string& form, int64_t n, int64_t k) {
  const Weights weights(form, n, k, options.hot ? 1 : size_t{1} << 30);
  const ops::Linear& first = weights.copies.front();
  std::span<const LinearRow> rows = n > 100000 ? fast_head_rows() : fast_linear_rows();
  for (const int64_t m : options.m) {
    const Buffer codes = host_buffer(static_cast<size_t>(m * k * 2));
    const Buffer scales = host_buffer(static_cast<size_t>(m * (k / 128 + 1)) * 4);
    const Buffer result = host_buffer(static_cast<size_t>(m * n) * 4);
    const DType to = n > 100000 ? DType::f32 : DType::bf16;
    const Tensor out = result.tensor(to, {m, n});
    std::memset(codes.data(), 0x38, codes.bytes());
    std::fill_n(static_cast<float*>(scales.data()), scales.bytes() / 4, 1.0f);
    ops::Activation x(codes.tensor(DType::bf16, {m, k}));
    if (first.input) {
      const ScaleShape shape = scale_shape(first.input->grid, m, k);
      x = QuantTensor{codes.tensor(dtype_of(first.input->code), {m, k}),
                      scales.tensor(DType::f32, {shape.rows, shape.cols}), *first.input};
    }
    const ops::OpDesc desc{
        .op = "linear",
        .m = m,
        .n = n,
        .k = k,
        .weight = first.quant ? first.quant.codes.type : DType::bf16,
        .weight_format = first.quant ? std::optional(first.quant.format) : std::nullopt,
        .input_format = first.input};
    for (const LinearRow& row : rows) {
      if (!options.kernel.empty() && row.name != options.kernel) continue;
      if (row.refuses(desc, context.caps)) continue;
      std::vector<double> reads, dots, gbs, gflops;
      size_t next = 0;
      for (int round = 0; round < options.rounds; ++round) {
        const Timing timing = options.wall ? Timing::wall : Timing::processor;
        reads.push_back(probe.measure(context.threads, timing));
        dots.push_back(bf16_dot_peak(context.threads, context.caps, timing));
        int64_t calls = 0;
        double seconds = 0;
        const double start = now(options);
        for (; seconds < 0.05; seconds = now(options) - start, ++calls) {
          launch(row, context, x, weights.copies[next++ % weights.copies.size()], out);
        }
        const double each = seconds / static_cast<double>(calls);
        gbs.push_back(static_cast<double>(first.bytes()) / each / 1e9);
        gflops.push_back(2.0 * static_cast<double>(m * n * k) / each / 1e9);
      }
      fmt::print(
          "{:<6} {:>6} x {:<5} m={:<4} {:<18} {:>6.1f} GB/s {:>4.0f} % of {:>5.1f}   "
          "{:>6.1f} GFLOP/s {:>4.0f} % of {:>5.1f}\n",
          form, n, k, m, row.name, median(gbs), 100 * median(gbs) / median(reads), median(reads),
          median(gflops), 100 * median(gflops) / std::max(1.0, median(dots)), median(dots));
      std::fflush(stdout);
    }
  }
}

int main(int argc, char** argv) {
  Options options;
  CLI::App app("linear kernels against in-run probes");
  app.add_option("--m", options.m, "rows of x")->delimiter(',');
  app.add_option("--w", options.w, "fp8 and int8 (per channel), block (128x128), bf16")
      ->delimiter(',');
  app.add_option("--kernel", options.kernel, "only this row of the table");
  app.add_option("--shape", options.shape, "only this shape: NxK");
  app.add_option("--threads", options.threads);
  app.add_option("--rounds", options.rounds);
  app.add_flag("--hot", options.hot, "one weight, again and again: from cache if it fits");
  app.add_flag("--wall", options.wall, "rates by the clock on the wall");
  CLI11_PARSE(app, argc, argv);

  ThreadPool threads(options.threads);
  CpuCaps caps = detect_caps();
  caps.threads = options.threads;
  const KernelContext context{threads, caps};
  const ReadProbe probe(threads);
  fmt::print("{}, {} threads; FMA peak {:.1f} GFLOP/s, BF16 dot peak {:.1f}, of tiles {:.1f}\n",
             name_of(caps), options.threads, fp32_fma_peak(threads, caps, Timing::processor),
             bf16_dot_peak(threads, caps, Timing::processor),
             bf16_tile_peak(threads, caps, Timing::processor));
  // Llama 3.2 1B: q and o, k and v, gate and up, down; its head last.
  std::vector<std::pair<int64_t, int64_t>> shapes = {
      {2048, 2048}, {512, 2048}, {8192, 2048}, {2048, 8192}};
  if (!options.shape.empty()) {
    const size_t cross = options.shape.find('x');
    shapes = {{std::stoll(options.shape), std::stoll(options.shape.substr(cross + 1))}};
  }
  for (const std::string& form : options.w) {
    for (const auto& [n, k] : shapes) bench(options, context, probe, form, n, k);
    if (form == "bf16" && options.shape.empty()) {
      Options head = options;
      std::erase_if(head.m, [](int64_t m) { return m > 16; });
      bench(head, context, probe, form, 128256, 2048);
    }
  }
  return 0;
}

}  // namespace
}  // namespace octet::cpu

int main(int argc, char** argv) {
  return octet::cpu::main(argc, argv);
}
