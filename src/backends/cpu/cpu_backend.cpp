#include "backends/cpu/cpu_backend.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <limits>

#include "backends/cpu/kernels/checks.h"
#include "backends/cpu/kernels/exact_ops.h"
#include "backends/cpu/kernels/exact_quantize.h"
#include "backends/cpu/kernels/input_form.h"

namespace octet::cpu {
namespace {

CpuCaps caps_of(const CpuOptions& options, const ThreadPool& threads) {
  CpuCaps caps = caps_for(options, detect_caps());
  caps.threads = threads.size();
  return caps;
}

ops::OpDesc describe(const char* op, const ops::Activation& x, const ops::Linear& w) {
  // A product of codes does not depend on what else is at hand.
  const bool plain = x.plain && (!w.input || op != std::string_view("linear"));
  return ops::describe(op, w, x.rows(), plain ? x.plain.type : DType::bf16);
}

// kv_b's products take their activations plain, whatever kv_b.input says for other uses.
ops::OpDesc describe_product(const char* op, const Tensor& x, const ops::Linear& kv_b) {
  ops::OpDesc desc = describe(op, x, kv_b);
  desc.m = x.shape[0];
  desc.input_format.reset();
  return desc;
}

constexpr QuantFormat kQueryFormat{Code::e4m3, grids::row, ScaleType::f32};

ops::OpDesc describe_attention(const char* op, const Tensor& q, const Tensor& cache,
                               const QuantFormat& format, const ops::AttentionSpec& spec) {
  ops::OpDesc desc;
  desc.op = op;
  desc.m = q.shape[0];
  desc.n = q.shape[1];
  desc.k = q.shape[2];
  desc.weight = cache.type;
  if (is_fp8(cache.type)) desc.weight_format = format;
  if (spec.fp8) desc.input_format = kQueryFormat;
  desc.activation = q.type;
  return desc;
}

// Bytes that one call moves: weights, scales, input and output. Attention's depend on the contexts,
// which a description does not have.
int64_t bytes_of(const ops::OpDesc& desc) {
  const auto matrix = [](int64_t rows, int64_t cols, DType plain,
                         const std::optional<QuantFormat>& format) {
    if (!format) return rows * cols * static_cast<int64_t>(size_of(plain));
    return rows * cols + 4 * scale_shape(format->grid, rows, cols).count();
  };
  const int64_t matrices = desc.op == "moe_experts" ? 3 : 1;
  const int64_t out = desc.op == "head_linear" ? 4 : static_cast<int64_t>(size_of(desc.activation));
  return matrices * matrix(desc.n, desc.k, desc.weight, desc.weight_format) +
         matrix(desc.m, desc.k, desc.activation, desc.input_format) + desc.m * desc.n * out;
}

template <typename Row>
ops::Choice choice_of(const Picked<Row>& picked, const ops::OpDesc& desc) {
  return {std::string(picked.row->name), std::string(picked.row->reduction_id), picked.estimate_us,
          bytes_of(desc), picked.rejected};
}

// Calls `use` with the table of an op; false if the op has no table.
template <typename Use>
bool with_table(const Tables& tables, const std::string& op, Use use) {
  if (op == "linear") {
    use(tables.linear);
  } else if (op == "head_linear") {
    use(tables.head_linear);
  } else if (op == "moe_experts") {
    use(tables.moe);
  } else if (op == "attention") {
    use(tables.attention);
  } else if (op == "mla_attention") {
    use(tables.mla_attention);
  } else if (op == "mla_absorb") {
    use(tables.mla_absorb);
  } else if (op == "mla_expand") {
    use(tables.mla_expand);
  } else {
    return false;
  }
  return true;
}

void check_pins(const CpuOptions& options, const Tables& tables) {
  for (const auto& [op, kernel] : options.pins) {
    std::string names;
    bool found = false;
    const bool known = with_table(tables, op, [&](const auto& rows) {
      for (const auto& row : rows) {
        found = found || row.name == kernel;
        names += fmt::format("{}{}", names.empty() ? "" : ", ", row.name);
      }
    });
    if (found) continue;
    throw Error(
        {.what = known ? "no such kernel" : "no such operation",
         .where = "--kernel",
         .value = fmt::format("{}={}", op, kernel),
         .accepted = known ? names : "linear, head_linear, moe_experts, attention, mla_attention"});
  }
}

}  // namespace

CpuBackend::CpuBackend(CpuOptions options)
    : options_(std::move(options)),
      threads_(options_.threads > 0 ? options_.threads : default_thread_count()),
      context_{threads_, caps_},
      tables_(kernel_tables(options_.kernels == "exact")) {
  caps_ = caps_of(options_, threads_);
  check_pins(options_, tables_);
  info_.name =
      fmt::format("cpu {}, {} thread{}", options_.kernels == "exact" ? "exact" : name_of(caps_),
                  threads_.size(), threads_.size() == 1 ? "" : "s");
  info_.memory_bytes = static_cast<int64_t>(
      std::min<size_t>(available_host_memory(), std::numeric_limits<int64_t>::max()));
}

Buffer CpuBackend::alloc(size_t bytes, const std::string& what) {
  try {
    return host_buffer(bytes);
  } catch (const Error& error) {
    ErrorParts parts = error.parts();
    parts.where = what;
    throw Error(std::move(parts));
  }
}

void CpuBackend::copy(const Tensor& from, const Tensor& to) {
  if (from.type != to.type || from.shape != to.shape || !from.contiguous() || !to.contiguous()) {
    unsupported("copy", "type or shape differ, or not contiguous", {{"from", from}, {"to", to}});
  }
  if (from.bytes() > 0) std::memmove(to.data, from.data, static_cast<size_t>(from.bytes()));
}

void CpuBackend::fill(const Tensor& tensor, uint8_t byte) {
  if (!tensor.contiguous()) unsupported("fill", "not contiguous", {{"tensor", tensor}});
  if (tensor.bytes() > 0) std::memset(tensor.data, byte, static_cast<size_t>(tensor.bytes()));
}

const std::string& CpuBackend::pin(const std::string& op) const {
  static const std::string none;
  const auto found = options_.pins.find(op);
  return found == options_.pins.end() ? none : found->second;
}

ops::Choice CpuBackend::choose(const ops::OpDesc& desc) const {
  ops::Choice choice;
  const bool known = with_table(tables_, desc.op, [&](const auto& rows) {
    choice = choice_of(pick(rows, desc, caps_, pin(desc.op)), desc);
  });
  if (!known) choice = {"exact", "row", 0, bytes_of(desc), {}};
  return choice;
}

std::vector<std::string> CpuBackend::kernels_for(const ops::OpDesc& desc) const {
  std::vector<std::string> names;
  with_table(tables_, desc.op, [&](const auto& rows) {
    for (const auto& row : rows) {
      if (!row.refuses(desc, caps_)) names.emplace_back(row.name);
    }
  });
  return names;
}

// --- ops with one implementation ----------------------------------------------------------------

void CpuBackend::embed(const Tensor& table, const Tensor& tokens, const Tensor& out) {
  cpu::embed(context_, table, tokens, out);
}
void CpuBackend::take_tokens(const Tensor& sampled, const Tensor& source, const Tensor& tokens) {
  for (int64_t i = 0; i < source.count(); ++i) {
    const int32_t row = source.as<int32_t>()[i];
    if (row >= 0) tokens.as<int32_t>()[i] = std::max(sampled.as<int32_t>()[row], 0);
  }
}

void CpuBackend::add(const Tensor& x, const Tensor& y, const Tensor& out) {
  cpu::add(context_, x, y, out);
}
void CpuBackend::gather_rows(const Tensor& x, const Tensor& rows, const Tensor& out) {
  cpu::gather_rows(context_, x, rows, out);
}
void CpuBackend::rms_norm(const Tensor& x, const ops::NormWeight& norm,
                          const ops::Activation& out) {
  cpu::rms_norm(context_, x, norm, out);
}
void CpuBackend::quantize(const Tensor& x, const QuantTensor& out, const Tensor& fixed_scale) {
  cpu::quantize(context_, x, out, fixed_scale);
}
void CpuBackend::silu_mul(const Tensor& gate, const Tensor& up, const ops::Activation& out) {
  cpu::silu_mul(context_, gate, up, out);
}
void CpuBackend::rope(const Tensor& x, const ops::RopeTable& table, const Tensor& positions) {
  cpu::rope(context_, x, table, positions);
}
void CpuBackend::scale_heads(const Tensor& x, const Tensor& factors) {
  cpu::scale_heads(context_, x, factors);
}
void CpuBackend::kv_write(const Tensor& k, const Tensor& v, const ops::GqaCache& cache,
                          const ops::Batch& batch) {
  cpu::kv_write(context_, k, v, cache, batch);
}
void CpuBackend::mla_kv_write(const Tensor& latent, const Tensor& k_pe, const ops::MlaCache& cache,
                              const ops::Batch& batch) {
  cpu::mla_kv_write(context_, latent, k_pe, cache, batch);
}
void CpuBackend::moe_route(const Tensor& logits, const Tensor& bias, const ops::RouterSpec& spec,
                           const ops::Routing& out) {
  cpu::moe_route(context_, logits, bias, spec, out);
}
void CpuBackend::sample(const Tensor& logits, const Tensor& rows, const ops::LogitEdits& edits,
                        const ops::SampleResult& out) {
  cpu::sample(context_, logits, rows, edits, out);
}

// --- ops with a choice of kernels ---------------------------------------------------------------

const LinearRow& CpuBackend::row_of(const ops::Activation& x, const ops::Linear& w) {
  return linear_(tables_.linear, describe("linear", x, w), caps_, pin("linear"));
}

void CpuBackend::linear(const ops::Activation& x, const ops::Linear& w, const Tensor& out) {
  const ops::Linear* const ws[] = {&w};
  linear_group(x, ws, {&out, 1});
}

// One quantization of the input serves all linears that want the same format, and those that one
// kernel takes run as one.
void CpuBackend::linear_group(const ops::Activation& x, std::span<const ops::Linear* const> ws,
                              std::span<const Tensor> outs) {
  invariant(ws.size() == outs.size(), "linear_group needs one output for each weight");
  if (x.rows() == 0) return;
  ops::Activation form = x;
  for (size_t i = 0, end = 0; i < ws.size(); i = end) {
    const bool dynamic = ws[i]->when == InputScale::dynamic;
    form = input_form(context_, dynamic ? form : x, *ws[i], kInputSlot);
    check_linear("linear", form, *ws[i], outs[i]);
    const LinearRow& row = row_of(form, *ws[i]);
    for (end = i + 1; end < ws.size() && same_input(*ws[i], *ws[end]); ++end) {
      check_linear("linear", form, *ws[end], outs[end]);
      if (&row_of(form, *ws[end]) != &row) break;
    }
    row.launch(context_, form, ws.subspan(i, end - i), outs.subspan(i, end - i));
    if (!dynamic) form = x;  // its scale is this weight's own
  }
}

void CpuBackend::head_linear(const Tensor& x, const ops::Linear& w, const Tensor& out) {
  if (x.rows() == 0) return;
  if (out.type != DType::f32 || w.input) {
    unsupported("head_linear", "the output must be f32 and the input plain",
                {{"x", x}, {"w", w.plain}, {"out", out}});
  }
  check_linear("head_linear", x, w, out);
  launch(
      head_linear_(tables_.head_linear, describe("head_linear", x, w), caps_, pin("head_linear")),
      context_, x, w, out);
}

void CpuBackend::attention(const Tensor& q, const ops::GqaCache& cache, const ops::Batch& batch,
                           const ops::AttentionSpec& spec, const Tensor& out, const Tensor& lse) {
  if (batch.rows == 0) return;
  check_attention(q, cache, batch, out, lse);
  // One scale a block and head, whichever way it was chosen.
  const QuantFormat format{
      code_of(cache.k.type), {0, static_cast<int32_t>(q.cols())}, ScaleType::f32};
  attention_(tables_.attention, describe_attention("attention", q, cache.k, format, spec), caps_,
             pin("attention"))
      .launch(context_, q, cache, batch, spec, out, lse);
}

void CpuBackend::mla_absorb(const Tensor& q, const ops::Linear& kv_b, int64_t nope,
                            const Tensor& out) {
  check_mla_product("mla_absorb", q, kv_b, nope, out);
  if (q.shape[0] == 0) return;
  mla_absorb_(tables_.mla_absorb, describe_product("mla_absorb", q, kv_b), caps_, pin("mla_absorb"))
      .launch(context_, q, kv_b, nope, out);
}

void CpuBackend::mla_expand(const Tensor& o_latent, const ops::Linear& kv_b, int64_t nope,
                            const Tensor& out) {
  check_mla_product("mla_expand", o_latent, kv_b, nope, out);
  if (o_latent.shape[0] == 0) return;
  mla_expand_(tables_.mla_expand, describe_product("mla_expand", o_latent, kv_b), caps_,
              pin("mla_expand"))
      .launch(context_, o_latent, kv_b, nope, out);
}

void CpuBackend::mla_attention(const Tensor& q_latent, const Tensor& q_pe,
                               const ops::MlaCache& cache, const ops::Batch& batch,
                               const ops::AttentionSpec& spec, const Tensor& out,
                               const Tensor& lse) {
  if (batch.rows == 0) return;
  check_mla_attention(q_latent, q_pe, cache, batch, out, lse);
  mla_attention_(tables_.mla_attention,
                 describe_attention("mla_attention", q_latent, cache.latent, cache.format, spec),
                 caps_, pin("mla_attention"))
      .launch(context_, q_latent, q_pe, cache, batch, spec, out, lse);
}

void CpuBackend::moe_experts(const ops::Activation& x, const ops::Routing& routing,
                             std::span<const ops::GatedMlp> experts, const Tensor& out) {
  if (x.rows() == 0) return;
  check_moe(x, routing, experts, out);
  const ops::OpDesc desc = describe("moe_experts", x, experts[0].gate);
  moe_(tables_.moe, desc, caps_, pin("moe_experts")).launch(context_, x, routing, experts, out);
}

}  // namespace octet::cpu
