#include "cuda/matrix_product.h"

#include <ATen/ATen.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAGuard.h>

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

Description description_of(const MatrixProduct& product) {
  cublasLtMatmulDesc_t created = nullptr;
  check(cublasLtMatmulDescCreate(&created, CUBLAS_COMPUTE_32F, CUDA_R_32F));
  Description description(created);
  set(description, CUBLASLT_MATMUL_DESC_TRANSA, product.left_is_transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
  set(description, CUBLASLT_MATMUL_DESC_TRANSB, CUBLAS_OP_N);
  set(description, CUBLASLT_MATMUL_DESC_EPILOGUE,
      product.epilogue == Epilogue::kBiasGelu ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS
                                              : CUBLASLT_EPILOGUE_DGELU_BGRAD);
  set(description, CUBLASLT_MATMUL_DESC_BIAS_POINTER, product.bias.data_ptr());
  set(description, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, product.before.data_ptr());
  set(description, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, product.before.size(1));
  return description;
}

}  // namespace

void MatrixProducts::run(const MatrixProduct& product) {
  const c10::cuda::CUDAGuard guard(product.right.device());
  const cudaDataType_t type = product.right.scalar_type() == at::kHalf ? CUDA_R_16F : CUDA_R_16BF;
  const Description description = description_of(product);
  const Layout left = layout_of(product.left, type);
  const Layout right = layout_of(product.right, type);
  const Layout result = layout_of(product.result, type);
  cublasLtHandle_t handle = at::cuda::getCurrentCUDABlasLtHandle();

  const Key key = {product.right.get_device(), product.right.size(0),
                   product.result.size(1),     product.right.size(1),
                   static_cast<int64_t>(type), static_cast<int64_t>(product.epilogue)};
  std::optional<cublasLtMatmulAlgo_t> algorithm;
  {
    const base::MutexLock lock(mutex_);
    const auto found = algorithms_.find(key);
    if (found != algorithms_.end()) algorithm = found->second;
  }
  if (!algorithm) {
    cublasLtMatmulPreference_t created = nullptr;
    check(cublasLtMatmulPreferenceCreate(&created));
    const Preference preference(created);
    check(cublasLtMatmulPreferenceSetAttribute(preference.get(), CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                               &kWorkspaceBytes, sizeof(kWorkspaceBytes)));
    cublasLtMatmulHeuristicResult_t best{};
    int count = 0;
    check(cublasLtMatmulAlgoGetHeuristic(handle, description.get(), left.get(), right.get(), result.get(),
                                         result.get(), preference.get(), 1, &best, &count));
    TORCH_CHECK(count == 1, "cuBLASLt has no algorithm for this product");
    algorithm = best.algo;
    const base::MutexLock lock(mutex_);
    algorithms_.emplace(key, best.algo);
  }
  const at::Tensor workspace = at::empty({kWorkspaceBytes}, product.right.options().dtype(at::kByte));
  const float one = 1;
  const float zero = 0;
  check(cublasLtMatmul(handle, description.get(), &one, product.left.const_data_ptr(), left.get(),
                       product.right.const_data_ptr(), right.get(), &zero, product.result.const_data_ptr(),
                       result.get(), product.result.mutable_data_ptr(), result.get(), &*algorithm,
                       workspace.mutable_data_ptr(), static_cast<size_t>(kWorkspaceBytes),
                       at::cuda::getCurrentCUDAStream()));
}

}  // namespace lockstep::cuda
