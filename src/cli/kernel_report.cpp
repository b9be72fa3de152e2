#include "cli/kernel_report.h"

#include <fmt/format.h>

#include "cli/name_patterns.h"
#include "cli/output.h"
#include "ops/kernel_table.h"

namespace octet::cli {
namespace {

// A problem of the model, and the modules that have it.
struct Problem {
  ops::OpDesc desc;
  OrderedGroups<std::string, int64_t> modules;
};

ops::OpDesc describe_attention(const OpenModel& open) {
  const model::Model& model = open.model();
  const DType cache = open.kv_dtype();
  ops::OpDesc desc;
  int32_t scaled = 0;
  if (const auto* gqa = std::get_if<model::Gqa>(&open.config().attention)) {
    desc.op = "attention";
    desc.n = gqa->heads;
    desc.k = gqa->head_dim;
    scaled = static_cast<int32_t>(gqa->head_dim);
  } else {
    const auto& mla = std::get<model::Mla>(open.config().attention);
    desc.op = "mla_attention";
    desc.n = mla.heads;
    desc.k = mla.kv_lora;
  }
  desc.weight = cache;
  if (is_code(cache)) {
    const int32_t tokens = model::has_token_heads(open.kv_type()) ? 1 : 0;  // 0: of a block or more
    desc.weight_format =
        QuantFormat{code_of(cache), scaled ? ScaleGrid{tokens, scaled} : grids::group128,
                    !scaled && open.unit_kv_scale() ? ScaleType::unit : ScaleType::f32};
  }
  if (model.fp8_attention())
    desc.input_format = QuantFormat{Code::e4m3, grids::row, ScaleType::f32};
  desc.activation = model.activation();
  return desc;
}

std::vector<Problem> problems_of(const OpenModel& open) {
  const model::Model& model = open.model();
  std::vector<Problem> problems;
  const auto add = [&](const ops::OpDesc& desc, const std::string& module) {
    const std::string key = to_string(desc);
    for (Problem& problem : problems) {
      if (to_string(problem.desc) != key) continue;
      ++problem.modules[folded(module)];
      return;
    }
    problems.push_back({desc, {}});
    ++problems.back().modules[folded(module)];
  };
  add(describe_attention(open), "attention");
  for (const model::LinearUse& use : model.linears()) {
    const ops::Linear& linear = *use.linear;
    switch (linear.role) {
      case Role::attn_latent:  // mla_absorb and mla_expand, each with one implementation
      case Role::expert_down:  // within moe_experts, which its gate stands for
        break;
      case Role::expert_gate_up:
        if (linear.name.ends_with(".gate_proj") || linear.name.ends_with(".w1")) {
          add(ops::describe("moe_experts", linear, 0, model.activation()), linear.name);
        }
        break;
      case Role::lm_head:
        add(ops::describe("head_linear", linear, 0, model.activation()), linear.name);
        break;
      default:
        add(ops::describe("linear", linear, 0, model.activation()), linear.name);
    }
  }
  return problems;
}

std::string modules_of(const Problem& problem) {
  std::string text;
  for (const auto& [name, count] : problem.modules.entries()) {
    text += fmt::format("{}{}{}", text.empty() ? "" : ", ", name,
                        count > 1 ? fmt::format(" ({})", count) : "");
  }
  return text;
}

}  // namespace

KernelReport report_kernels(const OpenModel& open, const ops::Backend& backend,
                            std::span<const int64_t> batches) {
  KernelReport report;
  OrderedJson rows = OrderedJson::array();
  for (Problem& problem : problems_of(open)) {
    report.text += fmt::format("\n{}\n", modules_of(problem));
    for (const int64_t batch : batches) {
      problem.desc.m = batch;
      const ops::Choice choice = backend.choose(problem.desc);
      report.text += fmt::format("  {}\n    {}  sums as {}, about {:.0f} us, moves {}\n",
                                 to_string(problem.desc), choice.kernel, choice.reduction_id,
                                 choice.estimate_us, show_bytes(static_cast<double>(choice.bytes)));
      OrderedJson rejected = OrderedJson::array();
      for (const auto& [kernel, reason] : choice.rejected) {
        report.text += fmt::format("      not {}: {}\n", kernel, reason);
        rejected.push_back({{"kernel", kernel}, {"reason", reason}});
      }
      rows.push_back({{"modules", modules_of(problem)},
                      {"problem", to_string(problem.desc)},
                      {"kernel", choice.kernel},
                      {"reduction_id", choice.reduction_id},
                      {"estimate_us", choice.estimate_us},
                      {"bytes", choice.bytes},
                      {"rejected", std::move(rejected)}});
    }
  }
  report.json = {{"backend", backend.info().name}, {"kernels", std::move(rows)}};
  return report;
}

}  // namespace octet::cli
