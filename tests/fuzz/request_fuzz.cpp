// parse_completion on any bytes: a request or an error object, nothing else; both can be shown.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "base/error.h"
#include "server/openai.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace octet::server;
  static const ServedModel served{
      .name = "m", .root = "m", .max_model_len = 4096, .vocab = 1000, .max_logprobs = 20};
  const std::string body(reinterpret_cast<const char*>(data), size);
  const auto show = [](const ApiError& error) {
    if (error.status < 400 || error.status > 499) std::abort();
    if (!octet::Json::parse(error_json(error)).contains("error")) std::abort();
  };
  try {
    const CompletionRequest request = parse_completion(body, served, 1);
    const auto& generation = request.generation;
    const bool sane = !request.prompts.empty() && request.n >= 1 && generation.max_tokens >= 1 &&
                      generation.min_tokens >= 0 && generation.sampling.temperature >= 0 &&
                      generation.sampling.top_p > 0 && generation.sampling.top_p <= 1 &&
                      generation.sampling.top_k >= 0 && generation.sampling.logprobs <= 20;
    if (!sane || request.best_of < request.n || generation.prompt_logprobs > 20) std::abort();
    const auto known = [&](int32_t id) { return id >= 0 && id < served.vocab; };
    for (const auto& [id, bias] : generation.sampling.logit_bias) {
      if (!known(id) || !(bias >= -100 && bias <= 100)) std::abort();
    }
    for (const int32_t id : generation.sampling.allowed) {
      if (!known(id)) std::abort();
    }
    for (const Prompt& prompt : request.prompts) {
      if (const auto* ids = std::get_if<std::vector<int32_t>>(&prompt)) {
        for (const int32_t id : *ids) {
          if (!known(id)) std::abort();
        }
      }
    }
  } catch (const ApiError& error) {
    show(error);
  } catch (const octet::Error& error) {
    show(to_api_error(error));
  }
  return 0;
}
