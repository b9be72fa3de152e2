// Services: memory, copies, waiting, graphs, and the choice of kernels.
#include "backends/cuda/cuda_backend.h"

#include <fmt/format.h>

#include <algorithm>

#include "backends/cuda/kernels/ops.h"

namespace octet::cuda {
namespace {

constexpr size_t kWorkspaceBytes = size_t{256} << 20;
// What the driver takes beside our own allocations, once kernels are loaded and steps captured:
// code and local memory of the kernels, cuBLASLt's own, and some 2 MiB a graph. Measured on an
// H200: 6 to 80 MB in runs with few shapes of steps.
constexpr int64_t kReserveBytes = int64_t{256} << 20;
constexpr size_t kEvents = 8;  // points that can be waited for at a time

void free_device(void* data, size_t, Device) {
  cudaFree(data);
}
void free_pinned(void* data, size_t, Device) {
  cudaFreeHost(data);
}

void throw_if_faulted(DeviceFault& reported) {
  const DeviceFault fault = reported;
  // Else it is left alone: a later step, which runs already, may be about to report.
  if (fault.kind != FaultKind::none) reported = {};
  switch (fault.kind) {
    case FaultKind::none:
      return;
    case FaultKind::token_outside_vocabulary:
      throw Fault(fmt::format("embed: token {} lies outside the vocabulary", fault.value));
    case FaultKind::row_outside_matrix:
      throw Fault(fmt::format("gather_rows: there is no row {}", fault.value));
    case FaultKind::position_without_block:
      throw Fault(fmt::format("kv_write: position {} has no block in the table", fault.value));
  }
}

}  // namespace

CudaBackend::StreamOwner::~StreamOwner() {
  if (stream) cudaStreamDestroy(stream);
}

CudaBackend::CudaBackend(const CudaOptions& options) : options_(options) {
  context_.caps = open_device(options.device);
  context_.deterministic = options.deterministic;
  context_.fast_accumulation = options.fast_accumulation;
  for (const auto& [op, kernel] : options.pins) {
    const auto& rows = op == "head_linear" ? head_rows() : linear_rows();
    const bool known = std::ranges::any_of(rows, [&](const auto& r) { return r.name == kernel; });
    if ((op == "linear" || op == "head_linear") && known) continue;
    std::string names;
    for (const LinearRow& row : rows) names += fmt::format(" {}={}", op, row.name);
    throw Error({.what = "unknown kernel",
                 .where = "--kernel",
                 .value = fmt::format("{}={}", op, kernel),
                 .accepted = "on CUDA, linear and head_linear:" + names});
  }
  check(cudaStreamCreateWithFlags(&stream_.stream, cudaStreamNonBlocking),
        "cudaStreamCreateWithFlags");
  context_.stream = stream_.stream;
  info_.name = fmt::format("cuda {}, compute capability {}.{}, {} SMs", context_.caps.name,
                           context_.caps.major, context_.caps.minor, context_.caps.sms);
  info_.device = {DeviceKind::cuda, options.device};
  info_.launch_depth = 2;
  info_.int8 = info_.kv_token_heads = info_.kv_channels = false;
  info_.graphs = options.graphs;
  workspace_ = alloc(kWorkspaceBytes, "workspace");
  context_.workspace = {workspace_.data(), workspace_.bytes()};
  const size_t counter_bytes = 2 * sizeof(int) * LaunchCounters::kPairs;
  counter_memory_ = alloc(counter_bytes, "launch counters");
  check(cudaMemset(counter_memory_.data(), 0, counter_bytes), "cudaMemset");
  counters_.data = static_cast<int*>(counter_memory_.data());
  context_.counters = &counters_;
  fault_ = alloc_host(sizeof(DeviceFault), "fault flag");
  context_.fault = static_cast<DeviceFault*>(fault_.data());
  *context_.fault = {};
  gemm_ = std::make_unique<GemmLibrary>(stream_.stream);
  context_.gemm = gemm_.get();
  size_t free = 0, total = 0;
  check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
  info_.memory_bytes = static_cast<int64_t>(free);
  info_.total_bytes = static_cast<int64_t>(total);
  info_.workspace_bytes = static_cast<int64_t>(workspace_.bytes());
  info_.reserve_bytes = kReserveBytes;
}

// The current device belongs to the thread in CUDA.
void CudaBackend::enter_thread() {
  check(cudaSetDevice(options_.device), "cudaSetDevice");
}

CudaBackend::~CudaBackend() {
  if (stream_.stream) cudaStreamSynchronize(stream_.stream);
  for (const cudaEvent_t event : events_) cudaEventDestroy(event);
}

Buffer CudaBackend::alloc(size_t bytes, const std::string& what) {
  void* data = nullptr;
  const cudaError_t status = cudaMalloc(&data, std::max<size_t>(bytes, 1));
  if (status == cudaErrorMemoryAllocation) {
    cudaGetLastError();  // it is answered here, and must not surface in a later call
    size_t free = 0, total = 0;
    check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
    throw Error(
        {.what = fmt::format("not enough GPU memory for {}", what),
         .where = info_.name,
         .value = fmt::format("{:.1f} MiB", static_cast<double>(bytes) / 1048576.0),
         .accepted = fmt::format("at most {:.1f} MiB, free of {:.1f}",
                                 static_cast<double>(free) / 1048576.0,
                                 static_cast<double>(total) / 1048576.0),
         .fix = "a smaller --max-model-len, --max-num-seqs or --kv-cache-memory, or a GPU with "
                "more memory"});
  }
  check(status, "cudaMalloc");
  return Buffer(data, bytes, info_.device, free_device);
}

Buffer CudaBackend::alloc_host(size_t bytes, const std::string& what) {
  void* data = nullptr;
  const cudaError_t status = cudaHostAlloc(&data, std::max<size_t>(bytes, 1), cudaHostAllocDefault);
  if (status == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    throw Error({.what = fmt::format("not enough host memory that can be pinned, for {}", what),
                 .value = fmt::format("{} bytes", bytes)});
  }
  check(status, "cudaHostAlloc");
  return Buffer(data, bytes, {}, free_pinned);
}

void CudaBackend::copy(const Tensor& from, const Tensor& to) {
  invariant(from.type == to.type && from.shape == to.shape && from.contiguous() && to.contiguous(),
            "a copy is between contiguous tensors of one type and shape");
  if (from.bytes() == 0) return;
  check(cudaMemcpyAsync(to.data, from.data, static_cast<size_t>(from.bytes()), cudaMemcpyDefault,
                        context_.stream),
        "cudaMemcpyAsync");
}

void CudaBackend::fill(const Tensor& tensor, uint8_t byte) {
  invariant(tensor.contiguous(), "fill takes a contiguous tensor");
  if (tensor.bytes() == 0) return;
  check(cudaMemsetAsync(tensor.data, byte, static_cast<size_t>(tensor.bytes()), context_.stream),
        "cudaMemsetAsync");
}

void CudaBackend::sync() {
  check(cudaStreamSynchronize(context_.stream), "cudaStreamSynchronize");
  throw_if_faulted(*context_.fault);
}

uint64_t CudaBackend::record() {
  if (events_.empty()) {
    events_.resize(kEvents);
    for (cudaEvent_t& event : events_) {
      check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreateWithFlags");
    }
  }
  const uint64_t point = next_point_++;
  check(cudaEventRecord(events_[point % kEvents], context_.stream), "cudaEventRecord");
  return point;
}

void CudaBackend::wait(uint64_t point) {
  invariant(point > 0 && point < next_point_, "wait for a point that was never recorded");
  // An event that was recorded again since lies later in the stream: waiting for it is right, too.
  check(cudaEventSynchronize(events_[point % kEvents]), "cudaEventSynchronize");
  throw_if_faulted(*context_.fault);
}

void CudaBackend::run_step(uint64_t key, FunctionRef<void()> body) {
  if (timer_) timer_->begin();
  if (key == 0 || !options_.graphs) {
    body();
  } else {
    graphs_.run(key, context_.stream, body);
  }
  if (timer_) timer_->end();
}

const std::string& CudaBackend::pin(const std::string& op) const {
  static const std::string none;
  const auto found = options_.pins.find(op);
  return found == options_.pins.end() ? none : found->second;
}

ops::Choice CudaBackend::choose(const ops::OpDesc& desc) const {
  ops::Choice choice;
  if (desc.op != "linear" && desc.op != "head_linear") {
    choice.kernel = desc.op;
    choice.reduction_id = desc.op;
    return choice;
  }
  const auto& rows = desc.op == "linear" ? linear_rows() : head_rows();
  PickedLinear picked =
      pick_linear(rows, desc, context_.caps, context_.deterministic, pin(desc.op));
  choice.kernel = picked.row->name;
  choice.reduction_id = picked.row->reduction_id;
  choice.estimate_us = picked.estimate_us;
  choice.rejected = std::move(picked.rejected);
  const double weight_bytes = static_cast<double>(desc.n * desc.k * size_of(desc.weight));
  const double activation = static_cast<double>(size_of(desc.activation));
  choice.bytes = static_cast<int64_t>(weight_bytes +
                                      activation * static_cast<double>(desc.m * (desc.k + desc.n)));
  return choice;
}

std::vector<std::string> CudaBackend::kernels_for(const ops::OpDesc& desc) const {
  if (desc.op != "linear" && desc.op != "head_linear") return {desc.op};
  std::vector<std::string> names;
  for (const LinearRow& row : desc.op == "linear" ? linear_rows() : head_rows()) {
    if (!row.refuses(desc, context_.caps)) names.emplace_back(row.name);
  }
  return names;
}

const LinearRow& CudaBackend::row_for(const std::vector<LinearRow>& rows, const ops::OpDesc& desc) {
  const PickKey key{&rows,
                    desc.m,
                    desc.n,
                    desc.k,
                    desc.weight,
                    desc.activation,
                    desc.weight_format,
                    desc.input_format};
  const auto found = picked_.find(key);
  if (found != picked_.end()) return *found->second;
  const LinearRow* const row =
      pick_linear(rows, desc, context_.caps, context_.deterministic, pin(desc.op)).row;
  picked_.emplace(key, row);
  return *row;
}

}  // namespace octet::cuda
