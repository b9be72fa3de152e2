#include "model/model.h"

#include <fmt/format.h>

#include <algorithm>

#include "model/families/families.h"

namespace octet::model {

std::string_view name_of(Compute compute) {
  switch (compute) {
    case Compute::fp32:
      return "fp32";
    case Compute::bf16:
      return "bf16";
    case Compute::fp8:
      return "fp8";
  }
  return "?";
}

Compute parse_compute(std::string_view text) {
  for (const Compute compute : {Compute::fp32, Compute::bf16, Compute::fp8}) {
    if (text == name_of(compute)) return compute;
  }
  throw Error({.what = "unknown arithmetic",
               .where = "--compute",
               .value = std::string(text),
               .accepted = "fp32, bf16, fp8"});
}

double Model::bytes_per_token() const {
  double bytes = 0;
  for (const LinearUse& use : linears()) {
    bytes += use.per_token * static_cast<double>(use.linear->bytes());
  }
  return bytes;
}

std::unique_ptr<Model> load_model(const ModelConfig& config,
                                  std::shared_ptr<const WeightSource> source, ops::Backend& backend,
                                  const LoadOptions& options) {
  const auto rows = families();
  const auto row = std::ranges::find(rows, config.family, &FamilyRow::family);
  invariant(row != rows.end(), "parse_config let an unknown family through");
  Binder binder(config, std::move(source), backend, options);
  DecoderWeights weights = row->bind(binder);
  binder.report(weights.notices);
  return std::make_unique<Decoder>(binder, std::move(weights));
}

}  // namespace octet::model
