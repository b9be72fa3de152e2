// gguf::parse on any bytes, and what is made of its metadata: an Error, or views inside the bytes
// and files that are JSON.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>

#include "base/error.h"
#include "base/json.h"
#include "model/config.h"
#include "model/gguf/hf_files.h"
#include "model/gguf/tensor_names.h"

namespace gguf = octet::model::gguf;

namespace {

void require_inside(std::span<const std::byte> part, std::span<const std::byte> whole) {
  if (part.data() < whole.data() || part.size() > whole.size() ||
      part.data() - whole.data() > static_cast<ptrdiff_t>(whole.size() - part.size())) {
    std::abort();
  }
}

// Each part may refuse the file for itself.
template <class F>
void attempt(F part) {
  try {
    part();
  } catch (const octet::Error&) {
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  attempt([&] {
    const gguf::File file = gguf::parse(bytes, "input");
    for (const gguf::TensorInfo& tensor : file.tensors) require_inside(tensor.bytes, bytes);
    attempt([&] {
      for (const gguf::NamedTensor& tensor : gguf::hf_tensors(file)) {
        const int64_t last = tensor.rows - 1;
        if (tensor.source_row(0) < 0 || tensor.source_row(last) < 0) std::abort();
      }
    });
    attempt([&] { octet::model::parse_config(gguf::config_json(file), "input"); });
    attempt([&] {
      for (const auto& [name, text] : gguf::tokenizer_files(file.metadata)) {
        octet::parse_json(text, name, {.duplicates = true});
      }
    });
  });
  return 0;
}
