// The form of an activation that a linear wants.
#pragma once

#include "backends/cpu/kernels/exact_quantize.h"

namespace octet::cpu {

// Where the backend keeps the input of a linear (this slot and the next).
inline constexpr size_t kInputSlot = 32;

// Does quantizing for `a` give what `b` wants?
inline bool same_input(const ops::Linear& a, const ops::Linear& b) {
  if (a.input != b.input) return false;
  if (!a.input || (a.when == InputScale::dynamic && b.when == InputScale::dynamic)) return true;
  return a.when == b.when && load_f32(a.input_scale.data) == load_f32(b.input_scale.data);
}

// x, with x.quant as `w.input` says: as given if it has that format, else quantized here from
// x.plain, into scratch slots `slot` and `slot + 1`. Fault if the form that is needed is absent.
inline ops::Activation input_form(const KernelContext& context, const ops::Activation& x,
                                  const ops::Linear& w, size_t slot) {
  if (!w.input) {
    if (!x.plain) unsupported("linear " + w.name, "needs a plain input", {{"x", x.quant.codes}});
    return x;
  }
  if (x.quant && x.quant.format == *w.input) return x;
  if (!x.plain) {
    unsupported("linear " + w.name, "needs an input in " + to_string(*w.input) + " or a plain one",
                {{"x", x.quant.codes}});
  }
  const int64_t rows = x.plain.rows(), cols = x.plain.cols();
  const ScaleShape cells = scale_shape(w.input->grid, rows, cols);
  ops::Activation form = x;
  form.quant.format = *w.input;
  form.quant.codes = Tensor(context.scratch.take(slot, static_cast<size_t>(rows * cols)),
                            dtype_of(w.input->code), {rows, cols});
  form.quant.scales =
      Tensor(context.scratch.take<float>(slot + 1, static_cast<size_t>(cells.count())), DType::f32,
             {cells.rows, cells.cols});
  quantize(context, x.plain, form.quant,
           w.when == InputScale::calibrated ? w.input_scale : Tensor{});
  return form;
}

}  // namespace octet::cpu
