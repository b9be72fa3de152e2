#include "backends/probe/observe.h"

#include <cstring>
#include <utility>

#include "base/error.h"

namespace octet::probe {
namespace {

const std::byte* row_of(const Tensor& x, int64_t row) {
  return x.as<const std::byte>() + row * x.row_stride() * static_cast<int64_t>(size_of(x.type));
}

// Rows of `x` one behind the other.
void copy_rows(const Tensor& x, std::span<const int64_t> rows, std::byte* to) {
  const auto bytes = static_cast<size_t>(x.cols()) * size_of(x.type);
  for (const int64_t row : rows) {
    std::memcpy(to, row_of(x, row), bytes);
    to += bytes;
  }
}

// The rows that are routed to each expert, ascending.
std::vector<std::vector<int64_t>> rows_by_expert(const ops::Routing& routing, size_t experts) {
  std::vector<std::vector<int64_t>> rows(experts);
  for (int64_t row = 0; row < routing.experts.rows(); ++row) {
    const auto* const ids = reinterpret_cast<const int32_t*>(row_of(routing.experts, row));
    for (int64_t i = 0; i < routing.experts.cols(); ++i) {
      rows[static_cast<size_t>(ids[i])].push_back(row);
    }
  }
  return rows;
}

}  // namespace

ObservingBackend::ObservingBackend(ops::Backend& inner, Observer observer)
    : ForwardingBackend(inner), observer_(std::move(observer)) {
  invariant(inner.info().device.kind == DeviceKind::cpu, "inputs are observed on the host");
}

void ObservingBackend::observe(std::span<const ops::Linear* const> ws, const ops::Activation& x) {
  invariant(static_cast<bool>(x.plain), "inputs are observed before they are quantized");
  inner().sync();
  observer_(ws, x.plain);
}

void ObservingBackend::linear(const ops::Activation& x, const ops::Linear& w, const Tensor& out) {
  const ops::Linear* const one[] = {&w};
  observe(one, x);
  inner().linear(x, w, out);
}

void ObservingBackend::linear_group(const ops::Activation& x,
                                    std::span<const ops::Linear* const> ws,
                                    std::span<const Tensor> outs) {
  observe(ws, x);
  inner().linear_group(x, ws, outs);
}

void ObservingBackend::moe_experts(const ops::Activation& x, const ops::Routing& routing,
                                   std::span<const ops::GatedMlp> experts, const Tensor& out) {
  invariant(static_cast<bool>(x.plain), "inputs are observed before they are quantized");
  inner().sync();
  const auto lists = rows_by_expert(routing, experts.size());
  for (size_t e = 0; e < experts.size(); ++e) {
    const ops::GatedMlp& mlp = experts[e];
    const auto n = static_cast<int64_t>(lists[e].size());
    if (n == 0) continue;
    const auto make = [&](int64_t cols, DType type) {
      return inner().alloc(static_cast<size_t>(n * cols) * size_of(type), "an expert's tokens");
    };
    const Buffer rows = make(x.cols(), x.plain.type);
    const Tensor gathered = rows.tensor(x.plain.type, {n, x.cols()});
    copy_rows(x.plain, lists[e], gathered.as<std::byte>());
    const ops::Linear* const both[] = {&mlp.gate, &mlp.up};
    observe(both, gathered);

    const Buffer gates = make(mlp.gate.out, DType::f32), ups = make(mlp.up.out, DType::f32);
    const Buffer hiddens = make(mlp.down.in, DType::f32);
    const Tensor gate = gates.tensor(DType::f32, {n, mlp.gate.out});
    const Tensor up = ups.tensor(DType::f32, {n, mlp.up.out});
    const Tensor hidden = hiddens.tensor(DType::f32, {n, mlp.down.in});
    inner().linear(gathered, mlp.gate, gate);
    inner().linear(gathered, mlp.up, up);
    inner().silu_mul(gate, up, hidden);
    const ops::Linear* const down[] = {&mlp.down};
    observe(down, hidden);
  }
  inner().moe_experts(x, routing, experts, out);
}

void ObservingBackend::kv_write(const Tensor& k, const Tensor& v, const ops::GqaCache& cache,
                                const ops::Batch& batch) {
  inner().sync();
  if (cache_observer_) cache_observer_(&cache, k, v);
  inner().kv_write(k, v, cache, batch);
}

void ObservingBackend::mla_kv_write(const Tensor& latent, const Tensor& k_pe,
                                    const ops::MlaCache& cache, const ops::Batch& batch) {
  inner().sync();
  if (cache_observer_) cache_observer_(&cache, latent, {});
  latent_.resize(static_cast<size_t>(latent.rows() * latent.cols()) * size_of(latent.type));
  std::vector<int64_t> all;
  for (int64_t row = 0; row < latent.rows(); ++row) all.push_back(row);
  copy_rows(latent, all, latent_.data());
  latent_shape_ = Tensor(latent_.data(), latent.type, {latent.rows(), latent.cols()});
  inner().mla_kv_write(latent, k_pe, cache, batch);
}

void ObservingBackend::mla_absorb(const Tensor& q, const ops::Linear& kv_b, int64_t nope,
                                  const Tensor& out) {
  const ops::Linear* const one[] = {&kv_b};
  observe(one, latent_shape_);
  inner().mla_absorb(q, kv_b, nope, out);
}

}  // namespace octet::probe
