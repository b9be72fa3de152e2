#include "backends/cpu/kernels/exact_gemm.h"

#include <algorithm>

#include "backends/cpu/kernels/checks.h"

namespace octet::cpu {
namespace {

constexpr int64_t kRowChunk = 512;  // rows of x decoded at a time: bounds the scratch
constexpr int64_t kRowTile = 64;    // rows of x against one set of decoded weights, in cache

}  // namespace

RowDecoder::RowDecoder(const Tensor& plain, const QuantTensor& quant)
    : matrix_(quant ? quant.codes : plain), rows_(matrix_.rows()), cols_(matrix_.cols()) {
  row_bytes_ = matrix_.row_stride() * static_cast<int64_t>(size_of(matrix_.type));
  if (quant) {
    if (quant.format.scale != ScaleType::unit) {
      scales_.emplace(quant);
      const int64_t step = quant.format.grid.cols;
      if (step > 0 && step < cols_) step_ = step;
    }
  }
}

void RowDecoder::decode(const Segments& segments, int64_t first, int64_t count, float* values,
                        float* scales, float* row_scales) const {
  const auto element = static_cast<int64_t>(size_of(matrix_.type));
  for (int64_t i = 0; i < count; ++i) {
    const char* const from = static_cast<const char*>(matrix_.data) + (first + i) * row_bytes_;
    float* const to = values + i * segments.stride();
    if (segments.padded == segments.length) {
      load_floats(matrix_.type, from, cols_, to);
      std::fill(to + cols_, to + segments.stride(), 0.0f);
    } else {
      std::fill(to, to + segments.stride(), 0.0f);
      for (int64_t s = 0; s < segments.count; ++s) {
        const int64_t k = s * segments.length;
        load_floats(matrix_.type, from + k * element, std::min(segments.length, cols_ - k),
                    to + s * segments.padded);
      }
    }
    row_scales[i] = scales_ && step_ == 0 ? scales_->at(first + i, 0) : 1.0f;
    if (!scales) continue;
    for (int64_t s = 0; s < segments.count; ++s) {
      scales[i * segments.count + s] =
          step_ == 0 ? 1.0f : scales_->at(first + i, s * segments.length);
    }
  }
}

void RowDecoder::dequantize(int64_t row, float* values) const {
  load_floats(matrix_.type, static_cast<const char*>(matrix_.data) + row * row_bytes_, cols_,
              values);
  if (!scales_) return;
  const int64_t step = step_ == 0 ? cols_ : step_;
  for (int64_t begin = 0; begin < cols_; begin += step) {
    const float scale = scales_->at(row, begin);
    const int64_t end = std::min(cols_, begin + step);
    for (int64_t k = begin; k < end; ++k) values[k] *= scale;
  }
}

int64_t multiply_scratch(const Segments& segments, int64_t columns) {
  // Weights, their scales, row scales, bias, and a tile of outputs; in whole cache lines.
  const int64_t floats = columns * (segments.stride() + segments.count + 2) + kRowTile * columns;
  return (floats + 15) / 16 * 16;
}

void multiply_range(const Segments& segments, const DecodedRows& x, const RowDecoder& w,
                    const Tensor& bias, int64_t begin, int64_t end, int64_t origin, int64_t columns,
                    float* scratch, const Tensor& out) {
  float* const values = scratch;
  float* const tile = values + columns * segments.stride();
  float* const scales = tile + kRowTile * columns;
  float* const row_scales = scales + columns * segments.count;
  float* const bias_values = row_scales + columns;
  const bool scaled = w.scale_step() > 0;
  const auto element = static_cast<int64_t>(size_of(out.type));
  const Rows out_rows(out);
  for (int64_t n = begin; n < end; n += columns) {
    const int64_t width = std::min(columns, end - n);
    w.decode(segments, n, width, values, scaled ? scales : nullptr, row_scales);
    if (bias) {
      load_floats(
          bias.type,
          static_cast<const char*>(bias.data) + n * static_cast<int64_t>(size_of(bias.type)), width,
          bias_values);
    }
    for (int64_t m = 0; m < x.rows; m += kRowTile) {
      const int64_t height = std::min(kRowTile, x.rows - m);
      dot_rows(segments,
               {x.values + m * segments.stride(),
                x.scales ? x.scales + m * segments.count : nullptr, height},
               {values, scaled ? scales : nullptr, width}, tile, columns);
      for (int64_t i = 0; i < height; ++i) {
        float* const row = tile + i * columns;
        for (int64_t j = 0; j < width; ++j) row[j] = (row[j] * row_scales[j]) * x.row_scales[m + i];
        if (bias) {
          for (int64_t j = 0; j < width; ++j) row[j] += bias_values[j];
        }
        store_floats(out.type, row, width, out_rows[m + i] + (n - origin) * element);
      }
    }
  }
}

void exact_linear(const KernelContext& context, const ops::Activation& x, const ops::Linear& w,
                  const Tensor& out) {
  check_linear("linear", x, w, out);
  const bool quantized = w.input.has_value();
  const Tensor& given = quantized ? x.quant.codes : x.plain;
  const RowDecoder inputs(quantized ? Tensor{} : x.plain, quantized ? x.quant : QuantTensor{});
  const RowDecoder weights(w.plain, w.quant);
  const Segments segments = segments_of(w.in, weights.scale_step(), inputs.scale_step());
  const int64_t rows = given.rows(), chunk = std::min(rows, kRowChunk);
  const int64_t columns = chunk <= 4 ? 8 : 32;

  const int64_t x_floats = chunk * (segments.stride() + segments.count + 1);
  float* const x_values = context.scratch.take<float>(0, static_cast<size_t>(x_floats));
  float* const x_scales = inputs.scale_step() > 0 ? x_values + chunk * segments.stride() : nullptr;
  float* const x_row_scales = x_values + chunk * (segments.stride() + segments.count);
  const int64_t scratch_floats = multiply_scratch(segments, columns);
  float* const scratch =
      context.scratch.take<float>(1, static_cast<size_t>(scratch_floats * context.threads.size()));

  for (int64_t first = 0; first < rows; first += chunk) {
    const int64_t count = std::min(chunk, rows - first);
    context.threads.parallel_for(count, 16, [&](int64_t begin, int64_t end, int) {
      inputs.decode(segments, first + begin, end - begin, x_values + begin * segments.stride(),
                    x_scales ? x_scales + begin * segments.count : nullptr, x_row_scales + begin);
    });
    Tensor part = out;
    part.data = Rows(out)[first];
    part.shape = {count, w.out};
    part.strides = {out.row_stride(), 1};
    context.threads.parallel_for(w.out, columns, [&](int64_t begin, int64_t end, int thread) {
      multiply_range(segments, {x_values, x_scales, x_row_scales, count}, weights, w.bias, begin,
                     end, 0, columns, scratch + thread * scratch_floats, part);
    });
  }
}

}  // namespace octet::cpu
