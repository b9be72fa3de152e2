// The configs of AWQ and GPTQ. Which linears are packed, the tensors say: `X.qweight` is there.
#include "model/packed_weights.h"
#include "model/quant/dialects.h"

namespace octet::model {
namespace {

// 4 bits, and -1 or a positive group size.
Packing read_packing(const JsonView& view, Packing::Layout layout) {
  // AutoAWQ called them w_bit and q_group_size at first.
  const char* bits = view.has("w_bit") ? "w_bit" : "bits";
  const char* group = view.has("q_group_size") ? "q_group_size" : "group_size";
  if (view.get<int64_t>(bits) != 4) view.refuse(bits, "this width is not supported", "4");
  Packing packing{.layout = layout};
  const int64_t size = view.get<int64_t>(group);
  packing.group = size == -1 ? 0 : read_extent(view, group, size);
  return packing;
}

QuantConfig config_of(const Packing& packing, QuantConfig::Schema schema) {
  QuantConfig config;
  config.schema = schema;
  config.names = QuantConfig::Names::parts;
  config.groups.push_back({.format = {.weight = unpacked_format(packing)}, .packing = packing});
  config.scale_suffix = ".scales";
  return config;
}

}  // namespace

QuantConfig read_awq_config(const JsonView& view) {
  Packing packing = read_packing(view, Packing::Layout::awq);
  const auto version = view.get<std::string>("version", "gemm");
  if (version != "gemm" && version != "GEMM") {
    view.refuse("version", "this layout of AWQ is not supported", "gemm");
  }
  packing.symmetric = !view.get<bool>("zero_point", true);
  if (packing.symmetric) {
    view.refuse("zero_point", "AWQ without zero points is not supported", "true");
  }
  QuantConfig config = config_of(packing, QuantConfig::Schema::awq);
  config.ignored = read_names(view, "modules_to_not_convert");
  return config;
}

QuantConfig read_gptq_config(const JsonView& view) {
  Packing packing = read_packing(view, Packing::Layout::gptq);
  const auto format = view.get<std::string>("checkpoint_format", "gptq");
  if (format != "gptq" && format != "gptq_v2") {
    view.refuse("checkpoint_format", "this layout of GPTQ is not supported", "gptq, gptq_v2");
  }
  // Version 1 stores zero points less one, also where they are symmetric (7 for 8).
  packing.zero_offset = format == "gptq" ? 1 : 0;
  if (const auto dynamic = view.find("dynamic"); dynamic && !dynamic->json().empty()) {
    view.refuse("dynamic", "modules with formats of their own are not supported", "null");
  }
  return config_of(packing, QuantConfig::Schema::gptq);
}

}  // namespace octet::model
