// octet doctor: what this machine has, what works here, and what to do about what does not.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <thread>

#include "backends/cpu/advice.h"
#include "backends/cpu/cpu_backend.h"
#include "backends/nvml/nvml.h"
#include "base/philox.h"
#include "base/thread_pool.h"
#include "cli/cuda_device.h"
#include "cli/output.h"
#include "cli/verbs.h"
#include "engine/self_test.h"
#include "model/binder.h"
#include "numerics/scheme.h"
#include "text/jinja.h"

namespace octet::cli {
namespace {

constexpr const char* kNoJinja =
    "run scripts/setup.sh, which fetches the engine that they need, and build again";

struct DoctorOptions {
  std::string nvml_library, json;
};

// An FP8 product [rows, in] x [out, in], quantized and multiplied by `backend`, as FP32.
std::vector<float> fp8_product(ops::Backend& backend) {
  constexpr int64_t rows = 64, out = 512, in = 1024;
  Philox random(0, 3);
  const auto values = [&](int64_t count) {
    std::vector<float> all(static_cast<size_t>(count));
    for (float& value : all) value = 2.0f * random.uniform() - 1.0f;
    return all;
  };
  std::vector<Buffer> memory;
  const auto on_device = [&](const void* data, DType type, Shape shape) {
    memory.push_back(
        backend.alloc(static_cast<size_t>(shape.count()) * size_of(type), "the FP8 check"));
    const Tensor tensor = memory.back().tensor(type, shape);
    if (data) backend.copy(Tensor(const_cast<void*>(data), type, shape), tensor);
    return tensor;
  };
  const LinearFormat format = scheme_named("fp8_channel").format;
  std::vector<float> x = values(rows * in), w = values(out * in);
  const model::QuantizedWeight quantized =
      model::quantize_weight(Tensor(w.data(), DType::f32, {out, in}), *format.weight);
  ops::Linear linear{.name = "the FP8 check", .out = out, .in = in};
  linear.quant = {on_device(quantized.codes.data(), DType::e4m3, {out, in}),
                  on_device(quantized.scales.data(), DType::f32, {out, 1}), *format.weight};
  linear.input = format.input;
  const Tensor input = on_device(x.data(), DType::f32, {rows, in});
  const Tensor result = on_device(nullptr, DType::f32, {rows, out});
  backend.linear(ops::Activation(input), linear, result);
  std::vector<float> host(static_cast<size_t>(rows * out));
  backend.copy(result, Tensor(host.data(), DType::f32, result.shape));
  backend.sync();
  return host;
}

// What a device makes of the product, against the bit-stable reference.
struct Check {
  std::string backend, problem;  // a problem: why it does not work
  double error = 0;              // Frobenius norm of the difference, of that of the reference
  double model_error = 0;        // of the logits of small models; of the CPU alone
  bool ok() const { return problem.empty(); }
};

Check check_fp8(const std::vector<float>& reference,
                const std::function<std::unique_ptr<ops::Backend>()>& open) {
  constexpr double most = 2e-3;  // FP32 sums in another order, tensor cores' shorter sums included
  Check check;
  try {
    const std::unique_ptr<ops::Backend> backend = open();
    check.backend = backend->info().name;
    const std::vector<float> found = fp8_product(*backend);
    double difference = 0, norm = 0;
    for (size_t i = 0; i < found.size(); ++i) {
      difference += std::pow(double{found[i]} - double{reference[i]}, 2);
      norm += std::pow(double{reference[i]}, 2);
    }
    check.error = std::sqrt(difference / norm);
    if (!(check.error <= most)) {
      check.problem = fmt::format("the FP8 product is wrong by {:.2g} of its size", check.error);
    }
  } catch (const std::exception& problem) {
    check.problem = problem.what();
  }
  return check;
}

// The shapes of the two kinds of model that Octet computes, as small as self_test makes them.
constexpr const char* kSmallModels[] = {
    R"({"architectures": ["LlamaForCausalLM"], "hidden_size": 128, "intermediate_size": 192,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64,
        "vocab_size": 64, "max_position_embeddings": 64, "rope_theta": 10000})",
    R"({"architectures": ["DeepseekV3ForCausalLM"], "hidden_size": 128, "intermediate_size": 192,
        "moe_intermediate_size": 64, "vocab_size": 64, "num_hidden_layers": 2,
        "num_attention_heads": 2, "n_routed_experts": 4, "n_shared_experts": 1,
        "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1, "norm_topk_prob": true,
        "routed_scaling_factor": 1.5, "first_k_dense_replace": 1, "q_lora_rank": 64,
        "kv_lora_rank": 128, "qk_nope_head_dim": 64, "qk_rope_head_dim": 32, "v_head_dim": 64,
        "max_position_embeddings": 64, "rope_theta": 10000})"};

// Whole small models beside the product, for every op that serving needs.
void check_models(ops::Backend& reference, Check& check) {
  if (!check.ok()) return;
  try {
    cpu::CpuBackend device;
    for (const char* text : kSmallModels) {
      const model::ModelConfig small =
          engine::small_version(model::parse_config(text, "the small model"));
      const engine::SelfTest test =
          engine::self_test(small, {.online = scheme_named("fp8_channel").format},
                            model::KvType::automatic, device, reference);
      check.model_error = std::max(check.model_error, test.error);
      engine::require_passed(test, device.info());
    }
  } catch (const std::exception& problem) {
    check.problem = problem.what();
  }
}

OrderedJson json_of(const Check& check) {
  return {{"ok", check.ok()},
          {"backend", check.backend},
          {"fp8_error", check.error},
          {"model_error", check.model_error},
          {"problem", check.problem}};
}

template <typename T>
OrderedJson or_null(const std::optional<T>& value) {
  return value ? OrderedJson(*value) : OrderedJson(nullptr);
}

OrderedJson json_of(const nvml::Gpu& gpu) {
  OrderedJson json{{"name", gpu.name},
                   {"uuid", gpu.uuid},
                   {"compute_capability", fmt::format("{}.{}", gpu.major, gpu.minor)},
                   {"memory_total", or_null(gpu.memory_total)},
                   {"memory_used", or_null(gpu.memory_used)},
                   {"sm_mhz", or_null(gpu.sm_mhz)},
                   {"sm_max_mhz", or_null(gpu.sm_max_mhz)},
                   {"memory_mhz", or_null(gpu.memory_mhz)},
                   {"power_watts", or_null(gpu.power_watts)},
                   {"power_limit_watts", or_null(gpu.power_limit_watts)},
                   {"celsius", or_null(gpu.celsius)},
                   {"throttle_reasons", or_null(gpu.throttle_reasons)},
                   {"mig", or_null(gpu.mig)},
                   {"ecc", or_null(gpu.ecc)},
                   {"ecc_corrected", or_null(gpu.corrected)},
                   {"ecc_uncorrected", or_null(gpu.uncorrected)},
                   {"ecc_corrected_ever", or_null(gpu.corrected_ever)},
                   {"ecc_uncorrected_ever", or_null(gpu.uncorrected_ever)}};
  json["remapped_rows"] = nullptr;
  if (const auto& rows = gpu.remapped_rows) {
    json["remapped_rows"] = {{"corrected", rows->corrected},
                             {"uncorrected", rows->uncorrected},
                             {"pending", rows->pending},
                             {"failed", rows->failed}};
  }
  json["native_fp8"] = gpu.major > 8 || (gpu.major == 8 && gpu.minor == 9);
  json["problems"] = gpu.problems();
  return json;
}

std::string line(std::string_view name, const std::string& value) {
  return fmt::format("  {:<20}{}\n", name, value);
}

std::string joined(const std::vector<std::string>& parts) {
  std::string text;
  for (const std::string& part : parts) text += (text.empty() ? "" : ", ") + part;
  return text;
}

std::string text_of(const nvml::Gpu& gpu) {
  const auto number = [](const auto& value, std::string_view unit) {
    return value ? fmt::format("{} {}", *value, unit) : std::string("not told");
  };
  std::string text =
      fmt::format("GPU {}, compute capability {}.{}\n", gpu.name, gpu.major, gpu.minor);
  if (gpu.memory_total && gpu.memory_used) {
    text += line("memory",
                 fmt::format("{} of {} in use", show_bytes(static_cast<double>(*gpu.memory_used)),
                             show_bytes(static_cast<double>(*gpu.memory_total))));
  }
  text += line("clocks", fmt::format("SM {}, at most {}, memory {}", number(gpu.sm_mhz, "MHz"),
                                     number(gpu.sm_max_mhz, "MHz"), number(gpu.memory_mhz, "MHz")));
  text += line("power", fmt::format("{}, capped at {}", number(gpu.power_watts, "W"),
                                    number(gpu.power_limit_watts, "W")));
  text += line("temperature", number(gpu.celsius, "C"));
  if (gpu.throttle_reasons && !gpu.throttle_reasons->empty()) {
    text += line("clock is limited by", joined(*gpu.throttle_reasons));
  }
  if (gpu.ecc) {
    text +=
        line("ECC", *gpu.ecc ? fmt::format("on; {} corrected, {} uncorrected errors",
                                           gpu.corrected.value_or(0), gpu.uncorrected.value_or(0))
                             : "off");
  }
  if (const auto& rows = gpu.remapped_rows) {
    text += line("remapped rows",
                 fmt::format("{} after corrected, {} after uncorrected errors{}", rows->corrected,
                             rows->uncorrected, rows->pending ? ", some wait for a reset" : ""));
  }
  for (const std::string& problem : gpu.problems()) text += line("! to do", problem);
  return text;
}

std::string text_of(std::string_view name, const Check& check) {
  if (!check.ok()) return line(name, "does not work: " + check.problem);
  const std::string models =
      check.model_error > 0 ? fmt::format(", small models within {:.1g}", check.model_error) : "";
  return line(name, fmt::format("works ({}; FP8 product within {:.1g} of the reference{})",
                                check.backend, check.error, models));
}

}  // namespace

int run_doctor(Args args) {
  DoctorOptions o;
  OptionTable table("octet doctor", "What this machine has, what works here and what to fix.");
  table.add("--nvml-library", &o.nvml_library,
            "open this file in place of the driver's libnvidia-ml", {.metavar = "FILE"});
  add_json_row(table, &o.json);
  if (table.parse(args) == OptionTable::Outcome::done) return print(table.output()), 0;

  cpu::CpuBackend exact({.kernels = "exact"});
  const std::vector<float> reference = fp8_product(exact);
  Check cpu = check_fp8(reference, [] { return std::make_unique<cpu::CpuBackend>(); });
  check_models(exact, cpu);
  const nvml::Report report = nvml::query(o.nvml_library);
  std::vector<Check> cuda;
  std::string missing = report.problem;
  if (missing.empty() && !built_with_cuda()) {
    missing =
        "there is a GPU, but this octet was built without CUDA: "
        "`cmake --preset cuda && cmake --build --preset cuda` (needs nvcc 13)";
  } else if (missing.empty()) {
    for (size_t i = 0; i < report.gpus.size(); ++i) {
      const std::string device = fmt::format("cuda:{}", i);
      cuda.push_back(check_fp8(reference, [&] { return open_cuda({.device = device}); }));
    }
  }
  const std::vector<std::string> xids = nvml::recent_xids();
  const cpu::CpuCaps caps = cpu::detect_caps();
  const std::string isa = cpu::name_of(caps);
  const int nodes = cpu::numa_nodes();
  const std::vector<std::string> advice = cpu::advice(caps, nodes);
  const int64_t memory = exact.info().memory_bytes;

  if (prints_text(o.json)) {
    std::string text =
        "CPU\n" + line("instruction set", isa) +
        line("threads", fmt::format("{} by default, {} logical", default_thread_count(),
                                    std::thread::hardware_concurrency())) +
        line("memory", show_bytes(static_cast<double>(memory)) + " free") +
        text_of("--device cpu", cpu) +
        line("chat templates", text::has_jinja() ? "work" : "missing: " + std::string(kNoJinja));
    for (const std::string& sentence : advice) text += line("note", sentence);
    if (!report.driver.empty()) {
      text += fmt::format("NVIDIA driver {}, for CUDA {}.{}\n", report.driver,
                          report.cuda_version / 1000, report.cuda_version % 1000 / 10);
    }
    for (size_t i = 0; i < report.gpus.size(); ++i) {
      text += text_of(report.gpus[i]);
      if (i < cuda.size()) text += text_of(fmt::format("--device cuda:{}", i), cuda[i]);
    }
    for (const std::string& xid : xids) text += line("! kernel log", xid);
    if (!missing.empty()) {
      text += fmt::format("GPU\n{}{}", line("--device cuda", "not available: " + missing),
                          line("instead", "--device cpu runs every verb"));
    }
    print(text);
  }
  OrderedJson gpus = OrderedJson::array();
  bool any = false;
  for (size_t i = 0; i < report.gpus.size(); ++i) {
    gpus.push_back(json_of(report.gpus[i]));
    gpus.back()["check"] = i < cuda.size() ? json_of(cuda[i]) : OrderedJson(nullptr);
    any |= i < cuda.size() && cuda[i].ok();
  }
  OrderedJson cpu_json = json_of(cpu);
  cpu_json["isa"] = isa;
  cpu_json["threads"] = default_thread_count();
  cpu_json["memory_free"] = memory;
  cpu_json["numa_nodes"] = nodes;
  cpu_json["advice"] = advice;
  write_json(o.json, {{"version", OCTET_VERSION},
                      {"chat_templates", text::has_jinja()},
                      {"cpu", cpu_json},
                      {"cuda",
                       {{"built", built_with_cuda()},
                        {"ok", any},
                        {"problem", missing},
                        {"driver", report.driver},
                        {"cuda_version", report.cuda_version},
                        {"gpus", gpus},
                        {"xids", xids}}}});
  return cpu.ok() ? 0 : 1;
}

}  // namespace octet::cli
