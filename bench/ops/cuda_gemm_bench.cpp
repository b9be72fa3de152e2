// Linears of many rows, as a prefill has them: what the table chooses against cuBLASLt itself, told
// the same scales, types and kind of accumulation.
//
// Both compute the same product in turns, a graph of launches each; the results are compared first.
// A line is the median over the rounds of the two rates and of their ratio, with its spread.
//
//   octet_bench_cuda_gemm [M...]      rows of x; 2048 and 4096
#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "backends/cuda/cuda_backend.h"
#include "backends/cuda/kernels/gemm_library.h"
#include "backends/cuda/probe.h"

namespace octet::cuda {
namespace {

constexpr int kRounds = 15, kLaunches = 8;
constexpr int64_t kCell = 128;

struct Shape {
  const char* name;
  Role role;
  int64_t n, k;
};
constexpr Shape kShapes[] = {
    {"8b q", Role::attn_in, 4096, 4096},          {"8b gate", Role::mlp_gate_up, 14336, 4096},
    {"8b down", Role::mlp_down, 4096, 14336},     {"70b q", Role::attn_in, 8192, 8192},
    {"70b gate", Role::mlp_gate_up, 28672, 8192}, {"70b down", Role::mlp_down, 8192, 28672},
};

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

class Bench {
 public:
  explicit Bench(CudaBackend& backend)
      : backend_(backend), stream_(backend.context().stream), watch_(stream_), library_(stream_) {}

  void run(const std::vector<int64_t>& rows) {
    std::printf("%s; TFLOP/s, medians of %d rounds\n", backend_.caps().name.c_str(), kRounds);
    std::printf("%-10s %-8s %6s %9s %9s %7s %s\n", "shape", "scales", "rows", "table", "cuBLASLt",
                "ratio", "(lowest to highest), kernel");
    for (const Shape& shape : kShapes) {
      for (const int64_t m : rows) {
        for (const bool block : {false, true}) measure(shape, m, block);
      }
    }
  }

 private:
  // Codes below 1 in magnitude and scales about 1: sums neither overflow nor vanish.
  struct Matrix {
    Buffer codes, scales;
    QuantTensor quant;
  };
  // Scales [rows, cells] lie in rows of `pitch`, or, if `columns`, in columns of `rows`.
  Matrix matrix(int64_t rows, int64_t cols, const QuantFormat& format, int64_t pitch, bool columns,
                uint32_t seed) {
    std::mt19937 random(seed);
    std::vector<uint32_t> words(static_cast<size_t>(rows * cols / 4));
    for (uint32_t& word : words) word = random() & 0xB7B7B7B7u;
    const ScaleShape cells = scale_shape(format.grid, rows, cols);
    const auto count = static_cast<size_t>(columns ? cells.count() : cells.rows * pitch);
    std::vector<float> values(count);
    for (float& v : values) v = 0.5f + static_cast<float>(random() % 1024) / 1024.0f;
    Matrix m{backend_.alloc(words.size() * 4, "codes"), backend_.alloc(count * 4, "scales"), {}};
    copy(m.codes, words.data(), words.size() * 4);
    copy(m.scales, values.data(), count * 4);
    Tensor scales = m.scales.tensor(DType::f32, {cells.rows, cells.cols});
    scales.strides[0] = columns ? 1 : pitch;
    scales.strides[1] = columns ? cells.rows : 1;
    m.quant = {m.codes.tensor(DType::e4m3, {rows, cols}), scales, format};
    return m;
  }
  void copy(const Buffer& to, const void* from, size_t bytes) {
    check(cudaMemcpyAsync(to.data(), from, bytes, cudaMemcpyHostToDevice, stream_), "copying");
    check(cudaStreamSynchronize(stream_), "copying");
  }

  template <class Launch>
  double seconds(const Launch& launch) {
    watch_.start();
    for (int i = 0; i < kLaunches; ++i) launch();
    return watch_.stop() / kLaunches;
  }

  void measure(const Shape& shape, int64_t m, bool block) {
    const QuantFormat w_format{Code::e4m3, block ? grids::block128 : grids::row, ScaleType::f32};
    const QuantFormat x_format{Code::e4m3, block ? grids::group128 : grids::row, ScaleType::f32};
    const int64_t cells = (shape.k + kCell - 1) / kCell, pitch = (cells + 3) / 4 * 4;
    const Matrix w = matrix(shape.n, shape.k, w_format, block ? pitch : 1, false, 1);
    const Matrix x = matrix(m, shape.k, x_format, 1, block, 2);
    ops::Linear linear{.name = shape.name, .role = shape.role, .out = shape.n, .in = shape.k};
    linear.quant = w.quant;
    linear.input = x_format;
    const auto out_bytes = static_cast<size_t>(m * shape.n * 2);
    const Buffer ours = backend_.alloc(out_bytes, "outputs");
    const Buffer theirs = backend_.alloc(out_bytes, "outputs");
    const Tensor out = ours.tensor(DType::bf16, {m, shape.n});

    const GemmProblem problem{
        .m = m,
        .n = shape.n,
        .k = shape.k,
        .x_stride = shape.k,
        .y_stride = shape.n,
        .scaling = block ? GemmProblem::Scaling::block : GemmProblem::Scaling::outer};
    const GemmOperands operands{.x = x.codes.data(),
                                .w = w.codes.data(),
                                .y = theirs.data(),
                                .x_scale = static_cast<const float*>(x.scales.data()),
                                .w_scale = static_cast<const float*>(w.scales.data())};
    const auto table = [&] { backend_.linear(ops::Activation(x.quant), linear, out); };
    const auto library = [&] { library_.multiply(problem, operands); };
    table();
    library();
    require_equal(ours, theirs, out_bytes, shape.name);

    const double work =
        2.0 * static_cast<double>(m * shape.n) * static_cast<double>(shape.k) * 1e-12;
    std::vector<double> first, second, ratios;
    for (int round = 0; round < kRounds; ++round) {
      // Whoever goes first finds the cooler card.
      const bool swapped = round % 2 == 1;
      const double a = swapped ? seconds(library) : seconds(table);
      const double b = swapped ? seconds(table) : seconds(library);
      first.push_back(work / (swapped ? b : a));
      second.push_back(work / (swapped ? a : b));
      ratios.push_back(first.back() / second.back());
    }
    const auto [least, most] = std::ranges::minmax(ratios);
    const ops::Choice choice = backend_.choose({.op = "linear",
                                                .m = m,
                                                .n = shape.n,
                                                .k = shape.k,
                                                .weight = DType::e4m3,
                                                .weight_format = w_format,
                                                .input_format = x_format});
    std::printf("%-10s %-8s %6ld %9.0f %9.0f %7.3f (%.3f to %.3f), %s\n", shape.name,
                block ? "block" : "row", m, median(first), median(second), median(ratios), least,
                most, choice.kernel.c_str());
    std::fflush(stdout);
  }

  // BF16 results of two kernels: equal but for the order of sums.
  void require_equal(const Buffer& a, const Buffer& b, size_t bytes, const char* name) {
    std::vector<uint16_t> first(bytes / 2), second(bytes / 2);
    check(cudaMemcpyAsync(first.data(), a.data(), bytes, cudaMemcpyDeviceToHost, stream_), "copy");
    check(cudaMemcpyAsync(second.data(), b.data(), bytes, cudaMemcpyDeviceToHost, stream_), "copy");
    check(cudaStreamSynchronize(stream_), name);
    double difference = 0, size = 0;
    for (size_t i = 0; i < first.size(); ++i) {
      const auto value = [](uint16_t h) {
        return double{std::bit_cast<float>(static_cast<uint32_t>(h) << 16)};
      };
      const double d = value(first[i]) - value(second[i]);
      difference += d * d;
      size += value(second[i]) * value(second[i]);
    }
    invariant(size > 0 && difference <= 1e-5 * size, std::string("results differ: ") + name);
  }

  CudaBackend& backend_;
  cudaStream_t stream_;
  Stopwatch watch_;
  GemmLibrary library_;
};

}  // namespace
}  // namespace octet::cuda

int main(int argc, char** argv) {
  std::vector<int64_t> rows;
  for (int i = 1; i < argc; ++i) rows.push_back(std::atol(argv[i]));
  if (rows.empty()) rows = {2048, 4096};
  try {
    octet::cuda::CudaBackend backend;
    octet::cuda::Bench(backend).run(rows);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
