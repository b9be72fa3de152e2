// A Hopper GPU as a Backend: one device, one stream, one workspace.
//
// Ops enqueue kernels and return; nothing is waited for but in sync() and wait(). Linears are
// chosen by the table of select.h, the other ops have one implementation each (kernels/ops.h).
#pragma once

#include <cuda_runtime_api.h>

#include <deque>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "backends/cuda/graph_cache.h"
#include "backends/cuda/kernels/expert_table.h"
#include "backends/cuda/kernels/gemm_library.h"
#include "backends/cuda/select.h"
#include "backends/cuda/step_timer.h"

namespace octet::cuda {

class CudaBackend final : public ops::Backend {
 public:
  // Error if this machine has no GPU that can run Octet (device.h).
  explicit CudaBackend(const CudaOptions& options = {});
  ~CudaBackend() override;

  const ops::BackendInfo& info() const override { return info_; }
  void enter_thread() override;
  Buffer alloc(size_t bytes, const std::string& what) override;
  Buffer alloc_host(size_t bytes, const std::string& what) override;
  void copy(const Tensor& from, const Tensor& to) override;
  void fill(const Tensor& tensor, uint8_t byte) override;
  void sync() override;
  uint64_t record() override;
  void wait(uint64_t point) override;
  ops::Choice choose(const ops::OpDesc& desc) const override;
  void run_step(uint64_t key, FunctionRef<void()> body) override;

  void embed(const Tensor& table, const Tensor& tokens, const Tensor& out) override;
  void take_tokens(const Tensor& sampled, const Tensor& source, const Tensor& tokens) override;
  void add(const Tensor& x, const Tensor& y, const Tensor& out) override;
  void gather_rows(const Tensor& x, const Tensor& rows, const Tensor& out) override;
  void rms_norm(const Tensor& x, const ops::NormWeight& norm, const ops::Activation& out) override;
  void add_rms_norm(const Tensor& residual, const Tensor& delta, const ops::NormWeight& norm,
                    const ops::Activation& out) override;
  void quantize(const Tensor& x, const QuantTensor& out, const Tensor& fixed_scale) override;
  void silu_mul(const Tensor& gate, const Tensor& up, const ops::Activation& out) override;
  void rope(const Tensor& x, const ops::RopeTable& table, const Tensor& positions) override;
  void scale_heads(const Tensor& x, const Tensor& factors) override;
  void linear(const ops::Activation& x, const ops::Linear& w, const Tensor& out) override;
  void linear_group(const ops::Activation& x, std::span<const ops::Linear* const> ws,
                    std::span<const Tensor> outs) override;
  void norm_linear_group(ops::ResidualStream& stream, const ops::NormWeight& norm,
                         const ops::Activation& normed, std::span<const ops::Linear* const> ws,
                         std::span<const Tensor> outs) override;
  void linear_to_stream(const ops::Activation& x, const ops::Linear& w, ops::ResidualStream& stream,
                        const ops::NormWeight& next) override;
  void norm_mlp_to_stream(ops::ResidualStream& stream, const ops::NormWeight& norm,
                          const ops::GatedMlp& mlp, const ops::MlpRoom& room,
                          const ops::NormWeight& next) override;
  void head_linear(const Tensor& x, const ops::Linear& w, const Tensor& out) override;
  void kv_write(const Tensor& k, const Tensor& v, const ops::GqaCache& cache,
                const ops::Batch& batch) override;
  void rope_kv_write(const Tensor& q, const Tensor& k, const Tensor& v, const ops::RopeTable& table,
                     const ops::GqaCache& cache, const ops::Batch& batch) override;
  void attention(const Tensor& q, const ops::GqaCache& cache, const ops::Batch& batch,
                 const ops::AttentionSpec& spec, const Tensor& out, const Tensor& lse) override;
  void rope_kv_attention(const Tensor& q, const Tensor& k, const Tensor& v,
                         const ops::RopeTable& table, const ops::GqaCache& cache,
                         const ops::Batch& batch, const ops::AttentionSpec& spec, const Tensor& out,
                         const Tensor& lse) override;
  void mla_kv_write(const Tensor& latent, const Tensor& k_pe, const ops::MlaCache& cache,
                    const ops::Batch& batch) override;
  void mla_absorb(const Tensor& q, const ops::Linear& kv_b, int64_t nope,
                  const Tensor& out) override;
  void mla_attention(const Tensor& q_latent, const Tensor& q_pe, const ops::MlaCache& cache,
                     const ops::Batch& batch, const ops::AttentionSpec& spec, const Tensor& out,
                     const Tensor& lse) override;
  void mla_expand(const Tensor& o_latent, const ops::Linear& kv_b, int64_t nope,
                  const Tensor& out) override;
  void moe_route(const Tensor& logits, const Tensor& bias, const ops::RouterSpec& spec,
                 const ops::Routing& out) override;
  void moe_experts(const ops::Activation& x, const ops::Routing& routing,
                   std::span<const ops::GatedMlp> experts, const Tensor& out) override;
  void sample(const Tensor& logits, const Tensor& rows, const ops::LogitEdits& edits,
              const ops::SampleResult& out) override;

  // The names of the rows that accept `desc`, in the order of the table: what can be pinned.
  std::vector<std::string> kernels_for(const ops::OpDesc& desc) const;
  const DeviceCaps& caps() const { return context_.caps; }
  // From now on the steps are timed; null ends that. The timer outlives its use.
  void time_steps(StepTimer* timer) { timer_ = timer; }
  const KernelContext& context() const { return context_; }  // for probes and benchmarks

 private:
  struct StreamOwner {
    cudaStream_t stream = nullptr;
    ~StreamOwner();
  };
  // The row that runs the first of some linears of one input, and how many go in its launch.
  struct Launch {
    const LinearRow* row;
    size_t count;
  };
  Launch next_launch(int64_t rows, DType activation, std::span<const ops::Linear* const> ws,
                     std::span<const Tensor> outs);
  const std::string& pin(const std::string& op) const;
  const LinearRow& row_for(const std::vector<LinearRow>& rows, const ops::OpDesc& desc);

  CudaOptions options_;
  KernelContext context_;
  StreamOwner stream_;
  Buffer workspace_, fault_, counter_memory_;
  LaunchCounters counters_;
  std::unique_ptr<GemmLibrary> gemm_;
  ExpertTables expert_tables_;
  GraphCache graphs_;
  // Events of the last points, oldest first; reused in turn.
  std::vector<cudaEvent_t> events_;
  uint64_t next_point_ = 1;
  using PickKey = std::tuple<const void*, int64_t, int64_t, int64_t, DType, DType,
                             std::optional<QuantFormat>, std::optional<QuantFormat>>;
  std::map<PickKey, const LinearRow*> picked_;
  StepTimer* timer_ = nullptr;
  ops::BackendInfo info_;
};

}  // namespace octet::cuda
