#include "backends/cuda/kernels/gemm_library.h"

#include <cublasLt.h>
#include <fmt/format.h>

#include <map>

#include "backends/cuda/device.h"

namespace octet::cuda {
namespace {

constexpr size_t kWorkspaceBytes = size_t{64} << 20;
// Steps of many sizes have as many plans. A plan is about 1 KiB.
constexpr size_t kMostPlans = 8192;
constexpr uint32_t kAlignment = 16;  // of all pointers, in bytes

std::string to_string(const GemmProblem& p) {
  const char* const scaling[] = {"scalar", "outer", "block"};
  return fmt::format("m={} n={} k={} x_stride={} y_stride={} types {} {} {} {}{}", p.m, p.n, p.k,
                     p.x_stride, p.y_stride, static_cast<int>(p.x_type), static_cast<int>(p.w_type),
                     static_cast<int>(p.y_type), scaling[static_cast<int>(p.scaling)],
                     p.fast ? " fast" : "");
}

// Fault, with the call, the problem and the library's own words, unless `status` is a success.
void check(cublasStatus_t status, const char* call, const GemmProblem* problem = nullptr) {
  if (status == CUBLAS_STATUS_SUCCESS) [[likely]]
    return;
  throw Fault(fmt::format("{}: {}{}{}", call, cublasLtGetStatusName(status), problem ? ", " : "",
                          problem ? to_string(*problem) : ""));
}

bool is_fp8(cudaDataType_t type) {
  return type == CUDA_R_8F_E4M3 || type == CUDA_R_8F_E5M2;
}

// Row-major matrices are column-major ones, transposed: with A = W and B = X,
//
//   A [k, n], ld k     B [k, m], ld x_stride     C = D [n, m] = Aᵀ · B, ld y_stride
//
// which is also the only layout that FP8 has.
struct Plan {
  cublasLtMatmulDescOpaque_t operation;
  cublasLtMatrixLayoutOpaque_t a, b, d;
  cublasLtMatmulAlgo_t algorithm;

  template <typename T>
  void set(cublasLtMatmulDescAttributes_t attribute, const T& value) {
    const auto* bytes = static_cast<const void*>(&value);  // T may be a pointer itself
    check(cublasLtMatmulDescSetAttribute(&operation, attribute, bytes, sizeof value),
          "cublasLtMatmulDescSetAttribute");
  }
  void set_scales(const GemmOperands& operands) {
    set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, operands.w_scale);
    set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, operands.x_scale);
  }
};

}  // namespace

struct GemmLibrary::State {
  cudaStream_t stream = nullptr;
  cublasLtHandle_t handle = nullptr;
  void* workspace = nullptr;
  std::map<GemmProblem, std::unique_ptr<Plan>> plans;

  ~State() {
    if (workspace) cudaFree(workspace);
    if (handle) cublasLtDestroy(handle);
  }
  std::unique_ptr<Plan> make_plan(const GemmProblem& problem, const GemmOperands& operands) const;
};

std::unique_ptr<Plan> GemmLibrary::State::make_plan(const GemmProblem& p,
                                                    const GemmOperands& operands) const {
  // The library's opaque structs stay where they were initialized.
  auto made = std::make_unique<Plan>();
  Plan& plan = *made;
  check(cublasLtMatmulDescInit(&plan.operation, CUBLAS_COMPUTE_32F, CUDA_R_32F),
        "cublasLtMatmulDescInit");
  plan.set(CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T);
  plan.set(CUBLASLT_MATMUL_DESC_TRANSB, CUBLAS_OP_N);
  if (is_fp8(p.x_type)) {
    using Scaling = GemmProblem::Scaling;
    int32_t w_mode = CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F, x_mode = w_mode;
    if (p.scaling == Scaling::outer) {
      w_mode = x_mode = CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F;
    } else if (p.scaling == Scaling::block) {
      w_mode = CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F;
      x_mode = CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F;
    }
    plan.set(CUBLASLT_MATMUL_DESC_A_SCALE_MODE, w_mode);
    plan.set(CUBLASLT_MATMUL_DESC_B_SCALE_MODE, x_mode);
    plan.set(CUBLASLT_MATMUL_DESC_FAST_ACCUM, static_cast<int8_t>(p.fast));
    plan.set_scales(operands);  // before the query: modes are judged with them
  }
  const auto size = [](int64_t value) { return static_cast<uint64_t>(value); };
  check(cublasLtMatrixLayoutInit(&plan.a, p.w_type, size(p.k), size(p.n), p.k),
        "cublasLtMatrixLayoutInit");
  check(cublasLtMatrixLayoutInit(&plan.b, p.x_type, size(p.k), size(p.m), p.x_stride),
        "cublasLtMatrixLayoutInit");
  check(cublasLtMatrixLayoutInit(&plan.d, p.y_type, size(p.n), size(p.m), p.y_stride),
        "cublasLtMatrixLayoutInit");

  cublasLtMatmulPreferenceOpaque_t preference;
  check(cublasLtMatmulPreferenceInit(&preference), "cublasLtMatmulPreferenceInit");
  const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
    check(cublasLtMatmulPreferenceSetAttribute(&preference, attribute, &value, sizeof value),
          "cublasLtMatmulPreferenceSetAttribute");
  };
  prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint64_t{kWorkspaceBytes});
  for (const auto attribute :
       {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
    prefer(attribute, kAlignment);
  }
  cublasLtMatmulHeuristicResult_t found{};
  int count = 0;
  check(cublasLtMatmulAlgoGetHeuristic(handle, &plan.operation, &plan.a, &plan.b, &plan.d, &plan.d,
                                       &preference, 1, &found, &count),
        "cublasLtMatmulAlgoGetHeuristic", &p);
  check(count > 0 ? found.state : CUBLAS_STATUS_NOT_SUPPORTED, "cublasLtMatmulAlgoGetHeuristic",
        &p);
  plan.algorithm = found.algo;
  return made;
}

GemmLibrary::GemmLibrary(cudaStream_t stream) : state_(std::make_unique<State>()) {
  state_->stream = stream;
  check(cublasLtCreate(&state_->handle), "cublasLtCreate");
  check(cudaMalloc(&state_->workspace, kWorkspaceBytes), "cudaMalloc of cuBLASLt's workspace");
}

GemmLibrary::~GemmLibrary() = default;

void GemmLibrary::multiply(const GemmProblem& problem, const GemmOperands& operands) {
  auto found = state_->plans.find(problem);
  if (found == state_->plans.end()) {
    if (state_->plans.size() >= kMostPlans) state_->plans.clear();
    found = state_->plans.emplace(problem, state_->make_plan(problem, operands)).first;
  }
  Plan& plan = *found->second;
  if (is_fp8(problem.x_type)) plan.set_scales(operands);
  const float alpha = 1.0f, beta = 0.0f;
  check(cublasLtMatmul(state_->handle, &plan.operation, &alpha, operands.w, &plan.a, operands.x,
                       &plan.b, &beta, operands.y, &plan.d, operands.y, &plan.d, &plan.algorithm,
                       state_->workspace, kWorkspaceBytes, state_->stream),
        "cublasLtMatmul", &problem);
}

}  // namespace octet::cuda
