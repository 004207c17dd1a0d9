#include "cuda/gelu_product.h"

#include <ATen/ATen.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAGuard.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <type_traits>

namespace lockstep::cuda {
namespace {

// As much as LibTorch gives cuBLAS on Hopper.
constexpr int64_t kWorkspaceBytes = int64_t{32} << 20;

void check(cublasStatus_t status) {
  TORCH_CHECK(status == CUBLAS_STATUS_SUCCESS, "cuBLASLt: ", cublasLtGetStatusName(status));
}

// The objects that describe a product to cuBLASLt.
template <typename T, cublasStatus_t (*destroy)(T)>
struct Destroy {
  void operator()(T object) const { destroy(object); }
};
template <typename T, cublasStatus_t (*destroy)(T)>
using Owned = std::unique_ptr<std::remove_pointer_t<T>, Destroy<T, destroy>>;
using Description = Owned<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy>;
using Layout = Owned<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>;
using Preference = Owned<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy>;

template <typename Value>
void set(const Description& description, cublasLtMatmulDescAttributes_t attribute, const Value& value) {
  check(cublasLtMatmulDescSetAttribute(description.get(), attribute, &value, sizeof(value)));
}

// A row-major matrix, which cuBLASLt sees as a column-major one that is transposed.
Layout layout_of(const at::Tensor& matrix, cudaDataType_t type) {
  cublasLtMatrixLayout_t layout = nullptr;
  check(cublasLtMatrixLayoutCreate(&layout, type, static_cast<uint64_t>(matrix.size(1)),
                                   static_cast<uint64_t>(matrix.size(0)), matrix.size(1)));
  return Layout(layout);
}

Description describe(const at::Tensor& bias, const at::Tensor& before) {
  cublasLtMatmulDesc_t created = nullptr;
  check(cublasLtMatmulDescCreate(&created, CUBLAS_COMPUTE_32F, CUDA_R_32F));
  Description description(created);
  set(description, CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T);
  set(description, CUBLASLT_MATMUL_DESC_TRANSB, CUBLAS_OP_N);
  set(description, CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_GELU_AUX_BIAS);
  set(description, CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias.const_data_ptr());
  set(description, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, before.data_ptr());
  set(description, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, before.size(1));
  return description;
}

// The bytes at whose multiples all these tensors are: what cuBLASLt assumes if nothing else is said, or what
// the caller promises.
uint32_t alignment_of(at::TensorList tensors) {
  constexpr uint32_t kAssumed = 256;
  constexpr uint32_t kPromised = 16;
  const bool is_as_assumed = std::all_of(tensors.begin(), tensors.end(), [](const at::Tensor& tensor) {
    return reinterpret_cast<uintptr_t>(tensor.const_data_ptr()) % kAssumed == 0;
  });
  return is_as_assumed ? kAssumed : kPromised;
}

// What cuBLASLt would choose.
cublasLtMatmulAlgo_t algorithm_for(cublasLtHandle_t handle, const Description& description,
                                   const Layout& left, const Layout& right, const Layout& result,
                                   uint32_t alignment) {
  cublasLtMatmulPreference_t created = nullptr;
  check(cublasLtMatmulPreferenceCreate(&created));
  const Preference preference(created);
  check(cublasLtMatmulPreferenceSetAttribute(preference.get(), CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                             &kWorkspaceBytes, sizeof(kWorkspaceBytes)));
  for (const auto attribute :
       {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
    check(cublasLtMatmulPreferenceSetAttribute(preference.get(), attribute, &alignment, sizeof(alignment)));
  }
  cublasLtMatmulHeuristicResult_t best{};
  int count = 0;
  check(cublasLtMatmulAlgoGetHeuristic(handle, description.get(), left.get(), right.get(), result.get(),
                                       result.get(), preference.get(), 1, &best, &count));
  TORCH_CHECK(count == 1, "cuBLASLt has no algorithm for a product with gelu");
  return best.algo;
}

}  // namespace

void GeluProduct::run(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias,
                      const at::Tensor& before, const at::Tensor& output) {
  const c10::cuda::CUDAGuard guard(input.device());
  const cudaDataType_t type = input.scalar_type() == at::kHalf ? CUDA_R_16F : CUDA_R_16BF;
  const Description description = describe(bias, before);
  const Layout left = layout_of(weight, type);
  const Layout right = layout_of(input, type);
  const Layout result = layout_of(output, type);
  cublasLtHandle_t handle = at::cuda::getCurrentCUDABlasLtHandle();
  const uint32_t alignment = alignment_of({input, weight, bias, before, output});
  const Key key = {input.get_device(),         input.size(0), output.size(1), input.size(1),
                   static_cast<int64_t>(type), alignment};
  std::optional<cublasLtMatmulAlgo_t> algorithm;
  {
    const base::MutexLock lock(mutex_);
    const auto found = algorithms_.find(key);
    if (found == algorithms_.end()) {
      algorithm = algorithms_.emplace(key, algorithm_for(handle, description, left, right, result, alignment))
                      .first->second;
    } else {
      algorithm = found->second;
    }
  }
  const at::Tensor workspace = at::empty({kWorkspaceBytes}, input.options().dtype(at::kByte));
  const float one = 1;
  const float zero = 0;
  check(cublasLtMatmul(handle, description.get(), &one, weight.const_data_ptr(), left.get(),
                       input.const_data_ptr(), right.get(), &zero, output.const_data_ptr(), result.get(),
                       output.mutable_data_ptr(), result.get(), &*algorithm, workspace.mutable_data_ptr(),
                       static_cast<size_t>(kWorkspaceBytes), at::cuda::getCurrentCUDAStream()));
}

}  // namespace lockstep::cuda
