#include "cli/linear_speed.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <vector>

#include "cli/name_patterns.h"
#include "cli/output.h"
#include "numerics/half.h"
#include "numerics/quantize.h"
#include "ops/kernel_table.h"

namespace octet::cli {
namespace {

constexpr double kSeconds = 0.05;  // of one measurement, at least three runs

// Made-up weights and inputs on the device, for as long as one shape is measured.
class Problem {
 public:
  Problem(ops::Backend& backend, const ops::Linear& like) : backend_(backend) {
    for (ops::Linear* one : {&quantized, &plain}) {
      one->name = like.name;
      one->role = like.role;
      one->out = like.out;
      one->in = like.in;
    }
    const Shape shape{like.out, like.in};
    std::vector<bf16> values(static_cast<size_t>(like.out * like.in));
    for (size_t i = 0; i < values.size(); ++i) values[i] = number(i);
    plain.plain = on_device(values.data(), DType::bf16, shape);
    const QuantFormat& format = like.quant.format;
    std::vector<uint8_t> codes(values.size());
    for (size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<uint8_t>(i * 37 % 120);
    const ScaleShape cells = scale_shape(format.grid, like.out, like.in);
    const std::vector<float> scales(static_cast<size_t>(cells.count()), 0.25f);
    quantized.quant = {on_device(codes.data(), like.quant.codes.type, shape),
                       on_device(scales.data(), DType::f32, {cells.rows, cells.cols}), format};
    quantized.input = like.input;
    quantized.when = like.when;
    constexpr float input_scale = 0.25f;
    if (like.input && like.when == InputScale::calibrated) {
      quantized.input_scale = on_device(&input_scale, DType::f32, {1});
    }
  }

  // Microseconds of one call with `rows` rows.
  double time(const ops::Linear& linear, int64_t rows) {
    std::vector<bf16> values(static_cast<size_t>(rows * linear.in));
    for (size_t i = 0; i < values.size(); ++i) values[i] = number(i);
    const size_t kept = memory_.size();
    const Tensor x = on_device(values.data(), DType::bf16, {rows, linear.in});
    const Tensor out = on_device(nullptr, DType::bf16, {rows, linear.out});
    using Clock = std::chrono::steady_clock;
    std::chrono::duration<double, std::micro> least{1e12}, all{0};
    backend_.linear(ops::Activation(x), linear, out);  // what is prepared once
    for (int run = 0; run < 3 || all.count() < kSeconds * 1e6; ++run) {
      const auto begin = Clock::now();
      backend_.linear(ops::Activation(x), linear, out);
      backend_.sync();
      const std::chrono::duration<double, std::micro> took = Clock::now() - begin;
      least = std::min(least, took);
      all += took;
    }
    memory_.resize(kept);
    return least.count();
  }

  ops::Linear quantized, plain;

 private:
  static bf16 number(size_t i) { return to_bf16(static_cast<float>(i % 17) / 16.0f - 0.5f); }

  Tensor on_device(const void* data, DType type, Shape shape) {
    memory_.push_back(
        backend_.alloc(static_cast<size_t>(shape.count()) * size_of(type), "a linear to be timed"));
    const Tensor tensor = memory_.back().tensor(type, shape);
    if (data) backend_.copy(Tensor(const_cast<void*>(data), type, shape), tensor);
    backend_.sync();
    return tensor;
  }

  ops::Backend& backend_;
  std::vector<Buffer> memory_;
};

bool is_of_experts(Role role) {
  return role == Role::expert_gate_up || role == Role::expert_down || role == Role::attn_latent;
}

}  // namespace

LinearSpeeds measure_linears(const OpenModel& open, ops::Backend& backend,
                             std::span<const int64_t> batches) {
  struct Alike {
    const ops::Linear* linear = nullptr;
    OrderedGroups<std::string, int64_t> modules;
  };
  OrderedGroups<std::string, Alike> shapes;
  for (const model::LinearUse& use : open.model().linears()) {
    const ops::Linear& linear = *use.linear;
    if (!linear.quant || is_of_experts(linear.role)) continue;
    const ops::OpDesc desc = ops::describe("linear", linear, 0, DType::bf16);
    Alike& shape = shapes[to_string(desc)];
    if (!shape.linear) shape.linear = &linear;
    ++shape.modules[folded(linear.name)];
  }
  LinearSpeeds speeds{.text = "\nmeasured: rows, us of a linear as stored, us in BF16; modules\n",
                      .json = OrderedJson::array()};
  int64_t slower = 0, all = 0;
  for (const auto& [name, shape] : shapes.entries()) {
    std::string modules;
    for (const auto& [module, count] : shape.modules.entries()) {
      modules += (modules.empty() ? "" : ", ") + module;
    }
    Problem problem(backend, *shape.linear);
    for (const int64_t rows : batches) {
      const double own = problem.time(problem.quantized, rows);
      const double bf16 = problem.time(problem.plain, rows);
      const bool is_slower = own > 1.05 * bf16;
      ++all;
      slower += is_slower;
      speeds.text += fmt::format("  {:>6} {:>10.1f} {:>10.1f}  {:<14}  {} [{}x{}]\n", rows, own,
                                 bf16, is_slower ? "BF16 is faster" : "", modules,
                                 shape.linear->out, shape.linear->in);
      speeds.json.push_back({{"modules", modules},
                             {"out", shape.linear->out},
                             {"in", shape.linear->in},
                             {"batch", rows},
                             {"us", own},
                             {"bf16_us", bf16},
                             {"slower", is_slower}});
    }
  }
  speeds.text += all == 0
                     ? "  none: no linear is quantized\n"
                     : fmt::format("BF16 is faster by more than 5 % in {} of {}\n", slower, all);
  return speeds;
}

}  // namespace octet::cli
