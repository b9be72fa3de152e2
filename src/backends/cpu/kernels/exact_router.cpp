// Which experts a token goes to. Everything in FP32 and in a fixed order, a row at a time.
#include <algorithm>
#include <vector>

#include "backends/cpu/kernels/exact_ops.h"
#include "backends/cpu/kernels/load.h"
#include "numerics/exact_math.h"

namespace octet::cpu {
namespace {

using Method = ops::RouterSpec::Method;

constexpr float kMasked = -std::numeric_limits<float>::infinity();

// Marks the `count` largest values, ties to the lower index, in the order of their choice.
void top(std::vector<float>& values, int count, std::vector<int>& chosen) {
  chosen.clear();
  std::vector<bool> taken(values.size());
  for (int i = 0; i < count; ++i) {
    int best = -1;
    for (size_t e = 0; e < values.size(); ++e) {
      if (!taken[e] && (best < 0 || values[e] > values[static_cast<size_t>(best)])) {
        best = static_cast<int>(e);
      }
    }
    taken[static_cast<size_t>(best)] = true;
    chosen.push_back(best);
  }
}

class RowRouter {
 public:
  RowRouter(const ops::RouterSpec& spec, const float* bias)
      : spec_(spec),
        bias_(bias),
        scores_(static_cast<size_t>(spec.experts)),
        choice_(scores_.size()),
        groups_(static_cast<size_t>(spec.groups)) {}

  void run(const float* logits, int32_t* experts, float* weights) {
    score(logits);
    for (size_t e = 0; e < scores_.size(); ++e) {
      const float c =
          spec_.method == Method::noaux_tc && bias_ ? scores_[e] + bias_[e] : scores_[e];
      choice_[e] = c == c ? c : kMasked;
    }
    if (spec_.method != Method::greedy && spec_.groups > 1) mask_groups();
    top(choice_, spec_.top_k, chosen_);
    float sum = 0.0f;
    for (int i = 0; i < spec_.top_k; ++i) {
      experts[i] = chosen_[static_cast<size_t>(i)];
      weights[i] = scores_[static_cast<size_t>(experts[i])];
      sum += weights[i];
    }
    for (int i = 0; i < spec_.top_k; ++i) {
      if (spec_.normalize) weights[i] /= sum + 1e-20f;
      weights[i] *= spec_.scaling;
    }
  }

 private:
  void score(const float* logits) {
    if (spec_.scoring == ops::RouterSpec::Scoring::sigmoid) {
      for (size_t e = 0; e < scores_.size(); ++e) scores_[e] = exact::sigmoid(logits[e]);
      return;
    }
    const float most = *std::max_element(logits, logits + scores_.size());
    float sum = 0.0f;
    for (size_t e = 0; e < scores_.size(); ++e) sum += scores_[e] = exact::exp(logits[e] - most);
    for (float& s : scores_) s /= sum;
  }

  // Leaves the experts of the best groups: by their best score (V2) or the sum of the two best
  // (V3).
  void mask_groups() {
    const auto size = scores_.size() / groups_.size();
    for (size_t g = 0; g < groups_.size(); ++g) {
      float first = kMasked, second = kMasked;
      for (size_t e = g * size; e < (g + 1) * size; ++e) {
        if (choice_[e] > first) {
          second = first;
          first = choice_[e];
        } else if (choice_[e] > second) {
          second = choice_[e];
        }
      }
      groups_[g] = spec_.method == Method::noaux_tc && size > 1 ? first + second : first;
    }
    top(groups_, spec_.top_groups, chosen_);
    for (size_t g = 0; g < groups_.size(); ++g) {
      if (std::find(chosen_.begin(), chosen_.end(), static_cast<int>(g)) != chosen_.end()) continue;
      std::fill_n(choice_.begin() + static_cast<std::ptrdiff_t>(g * size), size, kMasked);
    }
  }

  const ops::RouterSpec& spec_;
  const float* bias_;
  std::vector<float> scores_, choice_, groups_;
  std::vector<int> chosen_;
};

}  // namespace

void moe_route(const KernelContext& context, const Tensor& logits, const Tensor& bias,
               const ops::RouterSpec& spec, const ops::Routing& out) {
  const int64_t rows = logits.rows();
  if (logits.type != DType::f32 || logits.cols() != spec.experts || spec.top_k < 1 ||
      spec.top_k > spec.experts || spec.groups < 1 || spec.experts % spec.groups != 0 ||
      spec.top_groups < 1 || spec.top_groups > spec.groups ||
      (bias && (bias.type != DType::f32 || bias.count() != spec.experts)) ||
      out.experts.type != DType::i32 || out.weights.type != DType::f32 ||
      out.experts.rows() != rows || out.weights.rows() != rows ||
      out.experts.cols() != spec.top_k || out.weights.cols() != spec.top_k) {
    unsupported(
        "moe_route", "shapes, types or the router's numbers do not fit",
        {{"logits", logits}, {"bias", bias}, {"experts", out.experts}, {"weights", out.weights}});
  }
  std::vector<float> bias_values;
  if (bias) {
    bias_values.resize(static_cast<size_t>(spec.experts));
    load_floats(bias.type, bias.data, spec.experts, bias_values.data());
  }
  const Rows logit_rows(logits), expert_rows(out.experts), weight_rows(out.weights);
  context.threads.parallel_for(rows, 16, [&](int64_t begin, int64_t end, int) {
    RowRouter router(spec, bias ? bias_values.data() : nullptr);
    for (int64_t row = begin; row < end; ++row) {
      router.run(reinterpret_cast<const float*>(logit_rows[row]),
                 reinterpret_cast<int32_t*>(expert_rows[row]),
                 reinterpret_cast<float*>(weight_rows[row]));
    }
  });
}

}  // namespace octet::cpu
