#include "cli/vllm_flags.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string_view>

#include "base/error.h"
#include "base/log.h"

namespace octet::cli {
namespace {

struct Flag {
  std::string_view name;
  bool has_value;
  // The values that ask for what is so anyway, separated by '|'; "*": any does. "": none does.
  std::string_view harmless;
  std::string_view instead;  // why it has no effect, or what to do
};

constexpr std::string_view kOneDevice =
    "one server runs on one device; start one for each device, behind a load balancer";
constexpr std::string_view kOnDisk = "download the model first: octet pull ORG/NAME --out DIR";
constexpr std::string_view kProxy = "put a reverse proxy before the server";
constexpr std::string_view kNoDraft = "there is no speculative decoding";
constexpr std::string_view kNoLora = "merge the adapter into the model's weights first";
constexpr std::string_view kFits =
    "weights and KV cache stay on the device; see octet serve's "
    "--kv-cache-memory and --max-model-len";
constexpr std::string_view kTextOnly = "this server reads and writes text only";
constexpr std::string_view kAlways = "it is always so";
constexpr std::string_view kNoLog = "requests are logged only where --request-log asks for it";

constexpr Flag kFlags[] = {
    {"--async-scheduling", false, "*", kAlways},
    {"--disable-fastapi-docs", false, "*", "there are none"},
    {"--disable-frontend-multiprocessing", false, "*", kAlways},
    {"--disable-log-requests", false, "*", kNoLog},
    {"--disable-log-stats", false, "*", "none are logged"},
    {"--disable-uvicorn-access-log", false, "*", "there is none"},
    {"--enable-auto-tool-choice", false, "*", "it is so where the model's format is known"},
    {"--enable-chunked-prefill", false, "*", kAlways},
    {"--enable-request-id-headers", false, "*", kAlways},
    {"--no-enable-log-requests", false, "*", kNoLog},
    {"--trust-remote-code", false, "*", "no code of a model is ever run"},
    {"--data-parallel-size", true, "1", kOneDevice},
    {"--distributed-executor-backend", true, "uni", kOneDevice},
    {"--dtype", true, "auto|bfloat16", "activations are BF16; --compute fp32 computes in FP32"},
    {"--load-format", true, "auto|safetensors", "safetensors and GGUF are read"},
    {"--pipeline-parallel-size", true, "1", kOneDevice},
    {"--runner", true, "auto|generate", "this server generates"},
    {"--task", true, "auto|generate", "this server generates"},
    {"--tensor-parallel-size", true, "1", kOneDevice},
    {"--tokenizer-mode", true, "auto|hf", "tokenizer.json is read"},
    {"-dp", true, "1", kOneDevice},
    {"-pp", true, "1", kOneDevice},
    {"-tp", true, "1", kOneDevice},
    {"--chat-template-content-format", true, "auto|string", "content becomes one text"},
    {"--compilation-config", true, "", "nothing is compiled; leave it out"},
    {"--cpu-offload-gb", true, "0", kFits},
    {"--download-dir", true, "", kOnDisk},
    {"--enable-expert-parallel", false, "", kOneDevice},
    {"--enable-log-requests", false, "", "use --request-log FILE"},
    {"--enable-lora", false, "", kNoLora},
    {"--enable-reasoning", false, "", "reasoning stays in the content"},
    {"--hf-token", true, "", kOnDisk},
    {"--limit-mm-per-prompt", true, "", kTextOnly},
    {"--lora-modules", true, "", kNoLora},
    {"--model", true, "", "name the model by position: octet serve MODEL"},
    {"--no-enable-chunked-prefill", false, "", "prompts are always computed in chunks"},
    {"--num-gpu-blocks-override", true, "", "use --kv-cache-memory BYTES"},
    {"--num-speculative-tokens", true, "", kNoDraft},
    {"--otlp-traces-endpoint", true, "", "there are no traces"},
    {"--reasoning-parser", true, "", "reasoning stays in the content"},
    {"--response-role", true, "assistant", "answers are the assistant's"},
    {"--return-tokens-as-token-ids", false, "", "send return_tokens_as_token_ids in a request"},
    {"--revision", true, "", kOnDisk},
    {"--root-path", true, "", kProxy},
    {"--speculative-config", true, "", kNoDraft},
    {"--speculative-model", true, "", kNoDraft},
    {"--ssl-ca-certs", true, "", kProxy},
    {"--ssl-certfile", true, "", kProxy},
    {"--ssl-keyfile", true, "", kProxy},
    {"--swap-space", true, "0", "what is preempted is computed again, not swapped out"},
    {"--tokenizer", true, "", "the tokenizer lies beside the weights, as tokenizer.json"},
    {"--tokenizer-revision", true, "", kOnDisk},
};

bool is_harmless(const Flag& flag, std::string_view value) {
  if (flag.harmless == "*") return true;
  for (std::string_view rest = flag.harmless; !rest.empty();) {
    const size_t end = std::min(rest.find('|'), rest.size());
    if (rest.substr(0, end) == value) return true;
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  return false;
}

}  // namespace

std::vector<std::string> without_vllm_flags(Args args) {
  std::vector<std::string> rest;
  for (size_t i = 0; i < args.size(); ++i) {
    const size_t equals = std::min(args[i].find('='), args[i].size());
    const std::string name = args[i].substr(0, equals);
    const auto* flag = std::ranges::find(kFlags, name, &Flag::name);
    if (flag == std::end(kFlags)) {
      rest.push_back(args[i]);
      continue;
    }
    std::string value;
    if (flag->has_value) {
      if (equals < args[i].size()) {
        value = args[i].substr(equals + 1);
      } else if (i + 1 < args.size()) {
        value = args[++i];
      }
    }
    if (is_harmless(*flag, value)) {
      log::info("{} has no effect: {}", name, flag->instead);
      continue;
    }
    std::string accepted(flag->harmless);
    std::ranges::replace(accepted, '|', ' ');
    throw Error({.what = "this flag of vLLM has no meaning here",
                 .where = name,
                 .value = value,
                 .accepted = accepted,
                 .fix = std::string(flag->instead)});
  }
  return rest;
}

}  // namespace octet::cli
