#include "offline/convert.h"

#include <filesystem>
#include <memory>
#include <vector>

#include "base/atomic_write.h"
#include "base/error.h"
#include "model/gguf/checkpoint.h"
#include "model/model.h"
#include "offline/checkpoint_folder.h"
#include "ops/null_backend.h"

namespace octet::offline {
namespace {

namespace fs = std::filesystem;

void refuse_source(const std::string& source) {
  if (model::is_gguf(source)) return;
  std::error_code ignored;
  const bool directory = fs::is_directory(source, ignored);
  throw Error({.what = "only GGUF files are converted",
               .where = source,
               .value = directory                     ? "a directory"
                        : fs::exists(source, ignored) ? "another kind of file"
                                                      : "no such file",
               .accepted = "a .gguf file",
               .fix = directory ? "use it as it is, or make it FP8 with `octet quantize`" : ""});
}

std::vector<std::byte> copy(const model::WeightSource& source, const std::string& name) {
  const Reading reading(source, name);
  const auto* data = reading.tensor().as<const std::byte>();
  return {data, data + reading.tensor().bytes()};
}

}  // namespace

ConvertReport convert_checkpoint(const ConvertOptions& options,
                                 const std::function<void(int64_t, int64_t)>& progress) {
  refuse_source(options.source);
  refuse_target(options.source, options.out, options.overwrite);
  const model::ModelConfig config = model::read_config(options.source);
  const std::shared_ptr<const model::WeightSource> source = model::open_weights(options.source);
  // Binding checks that nothing is missing and all shapes fit; it reads no weight.
  ops::NullBackend nowhere;
  model::load_model(config, source, nowhere,
                    {.compute = model::Compute::bf16, .max_positions = 1, .read_weights = false});

  std::vector<model::PendingTensor> tensors;
  for (const std::string& name : source->names()) {
    const Tensor& stored = *source->find(name, {});
    tensors.push_back(
        {name, stored.type, stored.shape, [&source, name] { return copy(*source, name); }});
  }
  AtomicDirectory directory(options.out,
                            options.overwrite ? Overwrite::replace : Overwrite::refuse);
  model::write_checkpoint(directory.path().string(), tensors, options.shard_bytes, progress);
  write_companions(options.source, read_config_json(options.source), directory.path());
  directory.commit();
  return {.tensors = static_cast<int64_t>(tensors.size()),
          .bytes_before = static_cast<int64_t>(fs::file_size(options.source)),
          .bytes_after = total_bytes(*source)};
}

}  // namespace octet::offline
