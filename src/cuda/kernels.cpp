#include "nn/kernels.h"

#include <ATen/ATen.h>
#include <ATen/cuda/CUDAContext.h>
#include <ATen/cuda/CUDAGeneratorImpl.h>
#include <ATen/cuda/PhiloxCudaState.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGraphsC10Utils.h>
#include <c10/cuda/CUDAGuard.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <mutex>
#include <utility>

#include "base/mutex.h"
#include "cuda/gelu_product.h"
#include "cuda/kernels.h"

namespace lockstep::cuda {
namespace {

Element element_of(const at::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case at::kHalf: return Element::kHalf;
    case at::kBFloat16: return Element::kBFloat16;
    default: return Element::kFloat;
  }
}

bool is_aligned(const at::Tensor& tensor) {
  return !tensor.defined() || reinterpret_cast<uintptr_t>(tensor.const_data_ptr()) % 16 == 0;
}

const float* floats_or_null(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.const_data_ptr<float>() : nullptr;
}

float* mutable_floats_or_null(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.mutable_data_ptr<float>() : nullptr;
}

Pixels pixels_of(const at::Tensor& images, bool are_aligned) {
  return {.rows = images.numel() / images.size(1),
          .channels = static_cast<int>(images.size(1)),
          .element = element_of(images),
          .is_aligned = are_aligned,
          .multiprocessors = at::cuda::getCurrentDeviceProperties()->multiProcessorCount};
}

Images images_of(const at::Tensor& tensor, bool are_aligned) {
  return {.count = tensor.size(0),
          .height = static_cast<int>(tensor.size(2)),
          .width = static_cast<int>(tensor.size(3)),
          .channels = static_cast<int>(tensor.size(1)),
          .element = element_of(tensor),
          .is_aligned = are_aligned};
}

Rows rows_of(const at::Tensor& input, const at::Tensor& output) {
  return {.rows = input.numel() / input.size(-1),
          .size = static_cast<int>(input.size(-1)),
          .input = element_of(input),
          .output = element_of(output),
          .multiprocessors = at::cuda::getCurrentDeviceProperties()->multiProcessorCount};
}

at::Tensor empty_images(const at::Tensor& like, at::IntArrayRef sizes) {
  return at::empty(sizes, like.options().memory_format(at::MemoryFormat::ChannelsLast));
}

static_assert(kMaxNormalized == nn::Kernels::kMaxNormalized);

NormStatistics statistics_in(const at::Tensor& tensor) {
  const int64_t channels = tensor.size(1);
  auto* first = tensor.mutable_data_ptr<float>();
  return {first, first + channels, first + 2 * channels, first + 3 * channels};
}

DropoutMask mask_of(double dropout, const at::Tensor& key) {
  DropoutMask mask{.key = nullptr, .threshold = 0, .scale = 1};
  if (!key.defined()) return mask;
  mask.key = reinterpret_cast<uint64_t*>(key.mutable_data_ptr<int64_t>());
  mask.threshold = static_cast<uint32_t>(std::lround(dropout * 65536));
  mask.scale = mask.threshold == 65536 ? 0 : 65536.0F / static_cast<float>(65536 - mask.threshold);
  return mask;
}

// A place in the random numbers of the device's generator, which then advances.
RandomState next_random() {
  auto* generator = at::get_generator_or_default<at::CUDAGeneratorImpl>(
      std::nullopt, at::cuda::detail::getDefaultCUDAGenerator());
  const std::scoped_lock lock(generator->mutex_);
  const at::PhiloxCudaState state = generator->philox_cuda_state(4);
  if (state.captured_) return {state.seed_.ptr, state.offset_.ptr, 0, state.offset_intragraph_};
  return {nullptr, nullptr, state.seed_.val, state.offset_.val};
}

class CudaKernels final : public nn::Kernels {
 public:
  int compute_capability(c10::DeviceIndex index) const override {
    const cudaDeviceProp& properties = *at::cuda::getDeviceProperties(index);
    return 10 * properties.major + properties.minor;
  }

  NormResult batch_norm_relu(const at::Tensor& input, const Norm& norm, const at::Tensor& shortcut,
                             const at::Tensor& shortcut_bias) const override {
    const c10::cuda::CUDAGuard guard(input.device());
    const cudaStream_t stream = at::cuda::getCurrentCUDAStream();
    NormResult result;
    result.output = at::empty_like(input, at::MemoryFormat::ChannelsLast);
    result.statistics = at::empty(
        {4, input.size(1)}, input.options().dtype(at::kFloat).memory_format(at::MemoryFormat::Contiguous));
    const bool drops = std::lround(norm.dropout * 65536) > 0;
    if (drops) result.key = at::empty({1}, result.statistics.options().dtype(at::kLong));
    const DropoutMask mask = mask_of(norm.dropout, result.key);
    const Pixels pixels =
        pixels_of(input, is_aligned(input) && is_aligned(shortcut) && is_aligned(shortcut_bias));
    const NormStatistics batch = statistics_in(result.statistics);
    const RunningStatistics running{.mean = mutable_floats_or_null(norm.running_mean),
                                    .variance = mutable_floats_or_null(norm.running_var),
                                    .batches = norm.num_batches_tracked.defined()
                                                   ? norm.num_batches_tracked.mutable_data_ptr<int64_t>()
                                                   : nullptr,
                                    .momentum = static_cast<float>(norm.momentum)};
    const Sums sums = sums_for(pixels, 2, result.statistics);
    statistics(pixels, input.const_data_ptr(), floats_or_null(norm.weight), floats_or_null(norm.bias),
               static_cast<float>(norm.eps), batch, running, mask, drops ? next_random() : RandomState{},
               sums.memory, stream);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    normalize_relu(pixels, input.const_data_ptr(), batch.scale, batch.shift, mask,
                   shortcut.defined() ? shortcut.const_data_ptr() : nullptr, floats_or_null(shortcut_bias),
                   result.output.mutable_data_ptr(), stream);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    return result;
  }

  at::Tensor scale_relu(const at::Tensor& input, const at::Tensor& scale, const at::Tensor& shift,
                        const at::Tensor& shortcut, const at::Tensor& shortcut_bias) const override {
    const c10::cuda::CUDAGuard guard(input.device());
    at::Tensor output = at::empty_like(input, at::MemoryFormat::ChannelsLast);
    const bool are_aligned = is_aligned(input) && is_aligned(shortcut) && is_aligned(shortcut_bias);
    normalize_relu(pixels_of(input, are_aligned), input.const_data_ptr(), floats_or_null(scale),
                   floats_or_null(shift), mask_of(0, {}),
                   shortcut.defined() ? shortcut.const_data_ptr() : nullptr, floats_or_null(shortcut_bias),
                   output.mutable_data_ptr(), at::cuda::getCurrentCUDAStream());
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    return output;
  }

  NormGradients batch_norm_relu_backward(const at::Tensor& gradient, const at::Tensor& input,
                                         const at::Tensor& statistics, const at::Tensor& key, double dropout,
                                         bool with_input, bool with_shortcut_bias) const override {
    const c10::cuda::CUDAGuard guard(input.device());
    const cudaStream_t stream = at::cuda::getCurrentCUDAStream();
    const DropoutMask mask = mask_of(dropout, key);
    const Pixels pixels = pixels_of(input, is_aligned(input) && is_aligned(gradient));
    const NormStatistics batch = statistics_in(statistics);
    const auto vector = [&] { return at::empty({input.size(1)}, statistics.options()); };
    NormGradients result;
    result.weight = vector();
    result.bias = vector();
    if (with_shortcut_bias) result.shortcut_bias = vector();
    const at::Tensor slope = vector();
    const at::Tensor offset = vector();
    const Sums sums = sums_for(pixels, with_shortcut_bias ? 3 : 2, statistics);
    gradient_sums(pixels, gradient.const_data_ptr(), input.const_data_ptr(), batch, mask,
                  {.weight = mutable_floats_or_null(result.weight),
                   .bias = mutable_floats_or_null(result.bias),
                   .shortcut_bias = mutable_floats_or_null(result.shortcut_bias),
                   .slope = mutable_floats_or_null(slope),
                   .offset = mutable_floats_or_null(offset)},
                  sums.memory, stream);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    if (!with_input) return result;
    result.input = at::empty_like(input, at::MemoryFormat::ChannelsLast);
    input_gradient(pixels, gradient.const_data_ptr(), input.const_data_ptr(), batch, mask,
                   floats_or_null(slope), floats_or_null(offset), result.input.mutable_data_ptr(), stream);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    return result;
  }

  PoolResult max_pool_2x2(const at::Tensor& input) const override {
    const c10::cuda::CUDAGuard guard(input.device());
    PoolResult result;
    result.output = empty_images(input, {input.size(0), input.size(1), input.size(2) / 2, input.size(3) / 2});
    result.place = at::empty_like(result.output, result.output.options().dtype(at::kByte));
    max_pool(images_of(input, is_aligned(input)), input.const_data_ptr(), result.output.mutable_data_ptr(),
             result.place.mutable_data_ptr<uint8_t>(), at::cuda::getCurrentCUDAStream());
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    return result;
  }

  at::Tensor max_pool_2x2_backward(const at::Tensor& gradient, const at::Tensor& place, int64_t height,
                                   int64_t width) const override {
    const c10::cuda::CUDAGuard guard(gradient.device());
    at::Tensor result = empty_images(gradient, {gradient.size(0), gradient.size(1), height, width});
    max_pool_backward(images_of(result, is_aligned(gradient)), gradient.const_data_ptr(),
                      place.const_data_ptr<uint8_t>(), result.mutable_data_ptr(),
                      at::cuda::getCurrentCUDAStream());
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    return result;
  }

  LayerNormResult layer_norm(const at::Tensor& input, const at::Tensor& branch, const at::Tensor& weight,
                             const at::Tensor& bias, double eps, at::ScalarType type) const override {
    const c10::cuda::CUDAGuard guard(input.device());
    LayerNormResult result;
    result.sum = branch.defined() ? at::empty_like(input) : input;
    result.output = at::empty_like(input, input.options().dtype(type));
    const Rows rows = rows_of(input, result.output);
    result.statistics = at::empty({2 * rows.rows}, input.options().dtype(at::kFloat));
    cuda::layer_norm(rows, input.const_data_ptr(), branch.defined() ? branch.const_data_ptr() : nullptr,
                     floats_or_null(weight), floats_or_null(bias), static_cast<float>(eps),
                     branch.defined() ? result.sum.mutable_data_ptr() : nullptr,
                     result.output.mutable_data_ptr(), mutable_floats_or_null(result.statistics),
                     at::cuda::getCurrentCUDAStream());
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    return result;
  }

  LayerNormGradients layer_norm_backward(const at::Tensor& gradient, const at::Tensor& sum_gradient,
                                         const at::Tensor& sum, const at::Tensor& weight,
                                         const at::Tensor& statistics, bool with_branch) const override {
    const c10::cuda::CUDAGuard guard(sum.device());
    const Rows rows = rows_of(sum, gradient);
    LayerNormGradients result;
    result.input = at::empty_like(sum);
    const bool of_other_type = with_branch && gradient.scalar_type() != sum.scalar_type();
    if (with_branch) result.branch = of_other_type ? at::empty_like(gradient) : result.input;
    result.weight = at::empty_like(weight);
    result.bias = at::empty_like(weight);
    const at::Tensor partial = at::empty({layer_norm_partial(rows)}, statistics.options());
    cuda::layer_norm_backward(
        rows, gradient.const_data_ptr(), sum_gradient.defined() ? sum_gradient.const_data_ptr() : nullptr,
        sum.const_data_ptr(), floats_or_null(weight), floats_or_null(statistics),
        result.input.mutable_data_ptr(), of_other_type ? result.branch.mutable_data_ptr() : nullptr,
        mutable_floats_or_null(result.weight), mutable_floats_or_null(result.bias),
        mutable_floats_or_null(partial), at::cuda::getCurrentCUDAStream());
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    return result;
  }

  GeluResult linear_gelu(const at::Tensor& input, const at::Tensor& weight,
                         const at::Tensor& bias) const override {
    GeluResult result;
    result.before = at::empty({input.size(0), weight.size(0)}, input.options());
    result.output = at::empty_like(result.before);
    gelu_product_.run(input, weight, bias, result.before, result.output);
    return result;
  }

  at::Tensor gelu_backward(at::Tensor& gradient, const at::Tensor& before) const override {
    return column_sums_of(gradient, before);
  }

  at::Tensor column_sums(const at::Tensor& matrix) const override { return column_sums_of(matrix, {}); }

  void cross_entropy(at::Tensor& scores, const at::Tensor& targets, int64_t ignored, const at::Tensor& losses,
                     bool with_gradient) const override {
    const c10::cuda::CUDAGuard guard(scores.device());
    cuda::cross_entropy(scores.size(0), static_cast<int>(scores.size(1)), element_of(scores),
                        is_aligned(scores), scores.mutable_data_ptr(), targets.const_data_ptr<int64_t>(),
                        ignored, losses.mutable_data_ptr<float>(), with_gradient,
                        at::cuda::getCurrentCUDAStream());
    C10_CUDA_KERNEL_LAUNCH_CHECK();
  }

  at::Tensor corner_mean(const at::Tensor& input, int64_t size) const override {
    const c10::cuda::CUDAGuard guard(input.device());
    at::Tensor result = empty_images(input, {input.size(0), input.size(1), 1, 1});
    cuda::corner_mean(images_of(input, is_aligned(input)), static_cast<int>(size), input.const_data_ptr(),
                      result.mutable_data_ptr(), at::cuda::getCurrentCUDAStream());
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    return result;
  }

  at::Tensor corner_mean_backward(const at::Tensor& gradient, int64_t size, int64_t height,
                                  int64_t width) const override {
    const c10::cuda::CUDAGuard guard(gradient.device());
    at::Tensor result = empty_images(gradient, {gradient.size(0), gradient.size(1), height, width});
    cuda::corner_mean_backward(images_of(result, is_aligned(gradient)), static_cast<int>(size),
                               gradient.const_data_ptr(), result.mutable_data_ptr(),
                               at::cuda::getCurrentCUDAStream());
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    return result;
  }

 private:
  struct Sums {
    SumMemory memory;
    at::Tensor partial;
    at::Tensor counters;
  };

  Sums sums_for(const Pixels& pixels, int count, const at::Tensor& like) const {
    Sums sums;
    sums.partial = at::empty({partial_sums(pixels, count)}, like.options());
    sums.counters = counters_for(like);
    sums.memory = {sums.partial.mutable_data_ptr<float>(), sums.counters.mutable_data_ptr<int>()};
    return sums;
  }

  // `gradient` changes if `before` is defined.
  static at::Tensor column_sums_of(const at::Tensor& gradient, const at::Tensor& before) {
    const c10::cuda::CUDAGuard guard(gradient.device());
    const Matrix matrix{.rows = gradient.size(0),
                        .columns = static_cast<int>(gradient.size(1)),
                        .element = element_of(gradient),
                        .is_aligned = is_aligned(gradient) && is_aligned(before),
                        .multiprocessors = at::cuda::getCurrentDeviceProperties()->multiProcessorCount};
    const auto options = gradient.options().dtype(at::kFloat);
    const at::Tensor partial = at::empty({column_sums_partial(matrix)}, options);
    at::Tensor result = at::empty({gradient.size(1)}, options);
    cuda::column_sums(matrix, gradient.data_ptr(), before.defined() ? before.const_data_ptr() : nullptr,
                      partial.mutable_data_ptr<float>(), result.mutable_data_ptr<float>(),
                      at::cuda::getCurrentCUDAStream());
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    return result;
  }

  // Zeros, which every kernel leaves as zeros. One set for each stream, whose kernels run one after another.
  at::Tensor counters_for(const at::Tensor& like) const {
    const auto make = [&] { return at::zeros({kCounters}, like.options().dtype(at::kInt)); };
    const auto stream = at::cuda::getCurrentCUDAStream();
    const base::MutexLock lock(mutex_);
    const auto found = counters_.find({stream.device_index(), stream.id()});
    if (found != counters_.end()) return found->second;
    // A recording does not zero memory now, only when it is replayed.
    if (c10::cuda::currentStreamCaptureStatusMayInitCtx() != c10::cuda::CaptureStatus::None) return make();
    return counters_[{stream.device_index(), stream.id()}] = make();
  }

  mutable GeluProduct gelu_product_;
  mutable base::Mutex mutex_;
  mutable std::map<std::pair<c10::DeviceIndex, c10::StreamId>, at::Tensor> counters_
      LOCKSTEP_GUARDED_BY(mutex_);
};

}  // namespace
}  // namespace lockstep::cuda

extern "C" __attribute__((visibility("default"))) const lockstep::nn::Kernels* lockstep_kernels() {
  // Never destroyed: CUDA may already have ended then.
  static const auto* const kernels = new lockstep::cuda::CudaKernels();
  return kernels;
}

// Checks that this function has the type to which the loader casts.
static lockstep::nn::PluginKernels* const kKernels [[maybe_unused]] = &lockstep_kernels;
