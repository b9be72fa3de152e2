#include "backends/cuda/kernels/expert_table.h"

#include <fmt/format.h>

#include <algorithm>

#include "backends/cuda/device.h"

namespace octet::cuda {
namespace {

void free_device(void* data, size_t, Device) {
  cudaFree(data);
}

bool is_aligned(const void* data) {
  return reinterpret_cast<uintptr_t>(data) % 16 == 0;
}

[[noreturn]] void refuse(const ops::Linear& w, const char* why) {
  throw Fault(fmt::format("moe_experts: {} {}: w {}, scales {}, bias {}", w.name, why,
                          to_string(w.quant ? w.quant.codes : w.plain), to_string(w.quant.scales),
                          to_string(w.bias)));
}

ExpertLinear pointers_of(const ops::Linear& w) {
  const bool scaled = w.quant && w.quant.format.scale != ScaleType::unit;
  return {
      .weight = w.quant ? w.quant.codes.data : w.plain.data,
      .scales = scaled ? w.quant.scales.as<const float>() : nullptr,
      .bias = w.bias.data,
      .input_scale = w.when == InputScale::calibrated ? w.input_scale.as<const float>() : nullptr};
}

ExpertForm form_of(const ops::Linear& w) {
  const Tensor& weight = w.quant ? w.quant.codes : w.plain;
  if (!weight || weight.rows() != w.out || weight.cols() != w.in) refuse(w, "has no such weight");
  ExpertForm form;
  form.out = w.out;
  form.in = w.in;
  form.type = weight.type;
  form.stride = weight.row_stride();
  form.bias = w.bias ? w.bias.type : DType::f32;
  form.input = w.input;
  form.when = w.input ? w.when : InputScale::dynamic;
  form.aligned =
      is_aligned(weight.data) && form.stride * static_cast<int64_t>(size_of(weight.type)) % 16 == 0;
  const auto is_float = [](DType type) {
    return type == DType::f32 || type == DType::bf16 || type == DType::f16;
  };
  if (w.quant ? !is_fp8(weight.type) : !is_float(weight.type)) refuse(w, "has an unknown type");
  if (w.bias && (w.bias.count() != w.out || !w.bias.contiguous() || !is_float(w.bias.type))) {
    refuse(w, "has a bias that does not fit");
  }
  if (form.when == InputScale::calibrated && !w.input_scale) refuse(w, "has no input scale");
  if (!w.quant) return form;
  form.format = w.quant.format;
  if (form.format->scale == ScaleType::unit) return form;
  const ScaleShape cells = scale_shape(form.format->grid, w.out, w.in);
  const Tensor& scales = w.quant.scales;
  if (!scales || scales.type != DType::f32 || scales.count() != cells.count()) {
    refuse(w, "has scales that do not fit");
  }
  // One scale may come as a scalar, and a column of scales as a vector.
  if (cells.rows > 1) form.scale_row = scales.strides[0];
  if (cells.cols > 1) {
    if (scales.shape.rank != 2) refuse(w, "has scales that do not fit");
    form.scale_col = scales.strides[1];
  }
  return form;
}

// True if kernels may treat w as `form` says.
bool has_form(const ops::Linear& w, const ExpertForm& form) {
  const ExpertForm own = form_of(w);
  return own.out == form.out && own.in == form.in && own.type == form.type &&
         own.stride == form.stride && own.format == form.format &&
         own.scale_row == form.scale_row && own.scale_col == form.scale_col &&
         (!w.bias || own.bias == form.bias) && own.input == form.input && own.when == form.when;
}

ExpertForm common_form(std::span<const ops::GatedMlp> experts, ops::Linear ops::GatedMlp::*part) {
  ExpertForm form = form_of(experts[0].*part);
  // The first one that has a bias says its type.
  for (const ops::GatedMlp& mlp : experts) {
    if (!(mlp.*part).bias) continue;
    form.bias = (mlp.*part).bias.type;
    break;
  }
  for (const ops::GatedMlp& mlp : experts) {
    if (!has_form(mlp.*part, form)) refuse(mlp.*part, "differs from the other experts in form");
    form.aligned = form.aligned && form_of(mlp.*part).aligned;
  }
  return form;
}

}  // namespace

const ExpertTable& ExpertTables::of(std::span<const ops::GatedMlp> experts) {
  invariant(!experts.empty(), "moe_experts: no experts");
  std::vector<Expert> wanted;
  wanted.reserve(experts.size());
  for (const ops::GatedMlp& mlp : experts) {
    wanted.push_back({pointers_of(mlp.gate), pointers_of(mlp.up), pointers_of(mlp.down)});
  }
  // Memory may have been given to another model since, so every pointer is compared; a table whose
  // first weight is the same and whose rest is not is out of date. The forms of the other experts
  // are those of the first: that was checked when the table was built.
  const auto found = std::ranges::find_if(tables_, [&](const ExpertTable& table) {
    return table.experts[0].gate.weight == wanted[0].gate.weight;
  });
  if (found != tables_.end()) {
    const bool same = found->experts == wanted && has_form(experts[0].gate, found->gate) &&
                      has_form(experts[0].up, found->up) && has_form(experts[0].down, found->down);
    if (same) return *found;
    tables_.erase(found);
  }

  ExpertTable table;
  table.gate = common_form(experts, &ops::GatedMlp::gate);
  table.up = common_form(experts, &ops::GatedMlp::up);
  table.down = common_form(experts, &ops::GatedMlp::down);
  table.experts = std::move(wanted);
  const size_t bytes = table.experts.size() * sizeof(Expert);
  void* data = nullptr;
  check(cudaMalloc(&data, bytes), "cudaMalloc of a table of experts");
  table.device = Buffer(data, bytes, {DeviceKind::cuda, 0}, free_device);
  check(cudaMemcpy(data, table.experts.data(), bytes, cudaMemcpyHostToDevice), "cudaMemcpy");
  // The backend's stream does not wait for the default one, which may still be copying.
  check(cudaStreamSynchronize(cudaStreamLegacy), "cudaStreamSynchronize");
  return tables_.emplace_back(std::move(table));
}

}  // namespace octet::cuda
