#include "numerics/policy.h"

#include <fmt/format.h>

#include <utility>

#include "base/error.h"
#include "base/json.h"

namespace octet {
namespace {

constexpr std::pair<Role, std::string_view> kRoles[] = {
    {Role::embedding, "embedding"},
    {Role::lm_head, "lm_head"},
    {Role::norm, "norm"},
    {Role::router, "router"},
    {Role::router_bias, "router_bias"},
    {Role::attn_in, "attn_in"},
    {Role::attn_latent, "attn_latent"},
    {Role::attn_out, "attn_out"},
    {Role::mlp_gate_up, "mlp_gate_up"},
    {Role::mlp_down, "mlp_down"},
    {Role::expert_gate_up, "expert_gate_up"},
    {Role::expert_down, "expert_down"},
    {Role::shared_gate_up, "shared_gate_up"},
    {Role::shared_down, "shared_down"},
    {Role::bias, "bias"},
};

std::string role_names() {
  std::string names;
  for (const auto& [role, name] : kRoles) {
    if (!names.empty()) names += ", ";
    names += name;
  }
  return names;
}

// `*` matches any run of characters, dots included, `?` exactly one. Linear in practice: only the
// last star is ever retried.
bool glob_matches(std::string_view glob, std::string_view text) {
  size_t g = 0, t = 0, star = glob.npos, retry = 0;
  while (t < text.size()) {
    if (g < glob.size() && glob[g] == '*') {
      star = g++;
      retry = t;
    } else if (g < glob.size() && (glob[g] == '?' || glob[g] == text[t])) {
      ++g, ++t;
    } else if (star != glob.npos) {
      g = star + 1;
      t = ++retry;
    } else {
      return false;
    }
  }
  while (g < glob.size() && glob[g] == '*') ++g;
  return g == glob.size();
}

bool is_16bit(const LinearFormat& format) {
  return !format.weight && !format.input;
}

// Whether a linear of this role can be FP8 at all. The router is one, though no default makes it
// FP8: that it must not be is worth measuring. The output head has 16-bit kernels only, an
// embedding is a look-up, and the others are vectors.
bool can_be_fp8(Role role) {
  return is_quantizable(role) || role == Role::router;
}

bool matches(const PolicyRow& row, Role role, std::string_view module) {
  if (row.role && *row.role != role) return false;
  // A row such as {"name": "model.layers.0.*", "weight": ...} means the layer's linears; its norms
  // and router match the name too, but become FP8 at most by a row of their own role.
  if (!row.role && !is_16bit(row.format) && !is_quantizable(role)) return false;
  if (row.holds && !row.holds(module)) return false;
  return row.name.empty() || glob_matches(row.name, module);
}

// Reads one policy file; `where` follows the position for the messages.
class FileReader {
 public:
  explicit FileReader(const std::string& path) : path_(path) {}

  std::vector<PolicyRow> read() {
    const Json rows = parse_json_file(path_);
    if (!rows.is_array()) fail("the policy must be an array of rows", rows.type_name(), "[{...}]");
    std::vector<PolicyRow> result;
    for (size_t i = 0; i < rows.size(); ++i) {
      row_ = fmt::format(", row {}", i);
      result.push_back(read_row(rows[i]));
    }
    return result;
  }

 private:
  [[noreturn]] void fail(std::string what, std::string value, std::string accepted) const {
    throw Error({.what = std::move(what),
                 .where = path_ + row_ + key_,
                 .value = std::move(value),
                 .accepted = std::move(accepted)});
  }

  PolicyRow read_row(const Json& json) {
    key_.clear();
    if (!json.is_object()) fail("a policy row must be an object", json.dump(), "{...}");
    PolicyRow row;
    row.origin = "--policy " + path_;
    row.reason = "asked for in the policy file";
    bool has_when = false;
    for (const auto& [key, value] : json.items()) {
      key_ = fmt::format(", key \"{}\"", key);
      if (key == "role") {
        const std::string name = string_of(value);
        row.role = parse_role(name);
        if (!row.role) fail("unknown role", name, role_names());
      } else if (key == "name") {
        row.name = string_of(value);
      } else if (key == "weight") {
        row.format.weight = format_of(value);
      } else if (key == "input") {
        row.format.input = format_of(value);
      } else if (key == "when") {
        has_when = true;
        row.format.when = when_of(value);
      } else if (key == "reason") {
        row.reason = string_of(value);
      } else {
        fail("unknown key", key, "role, name, weight, input, when, reason");
      }
    }
    key_.clear();
    check(row, json, has_when);
    return row;
  }

  // What each key accepts alone, but the row as a whole must not say.
  void check(const PolicyRow& row, const Json& json, bool has_when) const {
    if (!json.contains("weight") && !json.contains("input")) {
      fail("a policy row must say what to do", json.dump(),
           "\"weight\" or \"input\" (null = 16-bit)");
    }
    if (has_when && !row.format.input) {
      fail("\"when\" needs an \"input\" format", json.dump(), "\"input\" beside it");
    }
    if (row.format.when == InputScale::calibrated && row.format.input->grid != grids::tensor) {
      fail("a calibrated input has one scale for the whole tensor", to_string(*row.format.input),
           "a [*x*] grid, or \"when\": \"dynamic\"");
    }
    if (row.role && !is_16bit(row.format) && !can_be_fp8(*row.role)) {
      fail("this role has no FP8 form", std::string(name_of(*row.role)),
           "null, or a role that is a linear layer");
    }
  }

  std::string string_of(const Json& value) const {
    if (!value.is_string()) fail("a string is expected", value.dump(), "\"...\"");
    return value.get<std::string>();
  }

  std::optional<QuantFormat> format_of(const Json& value) const {
    if (value.is_null()) return std::nullopt;
    const std::string text = string_of(value);
    const auto format = parse_quant_format(text);
    if (!format) {
      fail("malformed format", text,
           "TYPE[ROWSxCOLS]SCALE: TYPE e4m3 or e5m2; ROWS and COLS a number or * for the whole "
           "axis; SCALE f32, e8m0 or unit. For example e4m3[128x128]f32");
    }
    return format;
  }

  InputScale when_of(const Json& value) const {
    const std::string text = string_of(value);
    if (text == "dynamic") return InputScale::dynamic;
    if (text == "calibrated") return InputScale::calibrated;
    fail("unknown time of scaling", text, "dynamic, calibrated");
  }

  std::string path_, row_, key_;
};

}  // namespace

std::string_view name_of(Role role) {
  for (const auto& [known, name] : kRoles) {
    if (known == role) return name;
  }
  throw Fault("not a Role");
}

std::optional<Role> parse_role(std::string_view text) {
  for (const auto& [role, name] : kRoles) {
    if (name == text) return role;
  }
  return std::nullopt;
}

bool is_quantizable(Role role) {
  switch (role) {
    case Role::attn_in:
    case Role::attn_latent:
    case Role::attn_out:
    case Role::mlp_gate_up:
    case Role::mlp_down:
    case Role::expert_gate_up:
    case Role::expert_down:
    case Role::shared_gate_up:
    case Role::shared_down:
      return true;
    case Role::embedding:
    case Role::lm_head:
    case Role::norm:
    case Role::router:
    case Role::router_bias:
    case Role::bias:
      return false;
  }
  throw Fault("not a Role");
}

Policy default_policy(const LinearFormat& scheme) {
  const LinearFormat high{};
  const LinearFormat weight_only{scheme.weight, std::nullopt, InputScale::dynamic};
  constexpr const char* plain = "no FP8 is asked for";
  const auto row = [](std::optional<Role> role, const LinearFormat& format, std::string reason) {
    return PolicyRow{role, "", format, std::move(reason), "default"};
  };
  return {{
      row(Role::norm, high, "a vector: no bytes to win, and its error would touch every channel"),
      row(Role::router, high,
          "logits summed and kept in FP32: a small error flips which experts are chosen"),
      row(Role::router_bias, high, "FP32: decides between nearly equal experts"),
      row(Role::bias, high, "a vector, added once in FP32"),
      row(Role::embedding, high, "a look-up: FP8 would save no arithmetic, and enters every layer"),
      row(Role::lm_head, high, "its error goes straight into the logits"),
      row(Role::attn_latent, weight_only,
          is_16bit(scheme) ? plain
                           : "input 16-bit: the latent that it multiplies is already FP8 in the "
                             "cache, and the absorbed form never multiplies it by this weight "
                             "alone"),
      row(std::nullopt, scheme, is_16bit(scheme) ? plain : "a linear layer of the FP8 data path"),
  }};
}

const PolicyRow& resolve(const Policy& policy, Role role, std::string_view module) {
  for (const PolicyRow& row : policy.rows) {
    if (matches(row, role, module)) return row;
  }
  throw Fault(fmt::format("no policy row matches {} '{}'", name_of(role), module));
}

std::vector<PolicyRow> read_policy_file(const std::string& path) {
  return FileReader(path).read();
}

}  // namespace octet
