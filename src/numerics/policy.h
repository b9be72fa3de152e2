// The precision policy: a first-match table from a tensor's role and name to its arithmetic. Each
// row carries a reason and its origin, and both are printed (`octet inspect`). Quantizer, loader,
// planner and evaluator all ask the same resolve().
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "numerics/scheme.h"

namespace octet {

// What a tensor is for. The role, not the name, decides its precision.
enum class Role : uint8_t {
  embedding,
  lm_head,
  norm,
  router,       // mlp.gate.weight of a mixture of experts
  router_bias,  // e_score_correction_bias
  attn_in,      // q, k, v, q_a, q_b, kv_a projections
  attn_latent,  // kv_b of MLA: W_UK and W_UV
  attn_out,
  mlp_gate_up,
  mlp_down,
  expert_gate_up,
  expert_down,
  shared_gate_up,
  shared_down,
  bias,
};
std::string_view name_of(Role role);
std::optional<Role> parse_role(std::string_view text);

// True for roles that are linears of the FP8 data path (attention, MLP, experts).
bool is_quantizable(Role role);

struct PolicyRow {
  std::optional<Role> role;  // absent = every role; for an FP8 format, every quantizable role
  std::string name;     // glob on the tensor's module name ("model.layers.0.*"); "" = every name
  LinearFormat format;  // both parts absent = keep 16-bit (or 32-bit for router and norms)
  std::string reason;
  std::string origin;  // "default", "config.json", "--policy FILE", ...
  std::function<bool(std::string_view module)> holds = {};  // beside the glob; absent = always
};

struct Policy {
  std::vector<PolicyRow> rows;  // first match wins
};

// The table that every scheme starts from: norms, router, embedding and lm_head kept high, each
// with its reason, then one row that gives `scheme` to the quantizable roles.
Policy default_policy(const LinearFormat& scheme);

// The row in force for a module ("model.layers.3.mlp.down_proj"). Throws Fault if no row matches:
// default_policy always ends with a row that matches all.
const PolicyRow& resolve(const Policy& policy, Role role, std::string_view module);

// --policy FILE: a JSON array of {"role"?, "name"?, "weight": "e4m3[1x*]f32" | null,
// "input": ... | null, "when"?: "dynamic"|"calibrated", "reason"?}. Rows go above the others.
// Globs:
// `*` is any run of characters, dots included, `?` exactly one. Throws Error naming file, row and
// key; also for a calibrated input that is not per tensor, and a role that has no FP8 form (norm,
// bias, router_bias, embedding, lm_head). An FP8 input on a 16-bit weight measures what the input
// alone costs; a router is FP8 only by a row with its role.
std::vector<PolicyRow> read_policy_file(const std::string& path);

}  // namespace octet
