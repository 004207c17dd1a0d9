#include "train/measured_memory.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <lockstep/model.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/torch.h>

#include <algorithm>
#include <atomic>
#include <new>

#include "torch_private/autograd_node.h"

namespace lockstep::train {
namespace {

// Higher than the priority of any allocator of LibTorch.
constexpr uint8_t kPriority = 255;

struct Count {
  std::atomic<int64_t> live = 0;
  std::atomic<int64_t> peak = 0;

  void add(int64_t bytes) {
    const int64_t now = live += bytes;
    int64_t most = peak;
    while (now > most && !peak.compare_exchange_weak(most, now)) {
    }
  }
};

// A header before the memory of each tensor: some of LibTorch's kernels free memory by its address
// only.
struct alignas(64) Header {
  c10::DataPtr memory;  // the header and the tensor's memory after it
  std::shared_ptr<Count> count;
  int64_t bytes = 0;
};

void release(void* data) {
  if (data == nullptr) return;
  Header* const header = static_cast<Header*>(data) - 1;
  header->count->live -= header->bytes;
  const c10::DataPtr memory = std::move(header->memory);
  header->~Header();
}

class CountingAllocator final : public c10::Allocator {
 public:
  CountingAllocator(c10::Allocator& real, std::shared_ptr<Count> count)
      : real_(real), count_(std::move(count)) {}

  c10::DataPtr allocate(size_t bytes) override {
    const c10::Device device(c10::DeviceType::CPU);
    if (bytes == 0) return {nullptr, nullptr, &release, device};
    c10::DataPtr memory = real_.allocate(sizeof(Header) + bytes);
    void* const place = memory.get();
    auto* const header = new (place) Header{std::move(memory), count_, static_cast<int64_t>(bytes)};
    count_->add(header->bytes);
    void* const data = header + 1;
    return {data, data, &release, device};
  }

  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* destination, const void* source, size_t bytes) const override {
    real_.copy_data(destination, source, bytes);
  }

 private:
  c10::Allocator& real_;
  const std::shared_ptr<Count> count_;
};

}  // namespace

struct CountedMemory::Impl {
  c10::Allocator* before = c10::GetCPUAllocator();
  std::shared_ptr<Count> count = std::make_shared<Count>();
  CountingAllocator allocator{*before, count};
};

CountedMemory::CountedMemory() : impl_(std::make_unique<Impl>()) {
  c10::SetCPUAllocator(&impl_->allocator, kPriority);
}

CountedMemory::~CountedMemory() { c10::SetCPUAllocator(impl_->before, kPriority); }

int64_t CountedMemory::live_bytes() const { return impl_->count->live; }
int64_t CountedMemory::peak_bytes() const { return impl_->count->peak; }
void CountedMemory::reset_peak() const { impl_->count->peak = impl_->count->live.load(); }

namespace {

using torch::autograd::variable_list;

// Frees each gradient as soon as it is computed: gradients are state, not activations.
class ForgetGradient final : public torch::autograd::FunctionPostHook {
 public:
  explicit ForgetGradient(at::Tensor parameter) : parameter_(std::move(parameter)) {}
  variable_list operator()(const variable_list& outputs, const variable_list&) override {
    parameter_.mutable_grad().reset();
    return outputs;
  }

 private:
  at::Tensor parameter_;
};

class WithoutGradients {
 public:
  explicit WithoutGradients(const torch::nn::Module& module) {
    for (const at::Tensor& parameter : module.parameters()) {
      if (!parameter.requires_grad()) continue;
      auto accumulator = torch::autograd::impl::grad_accumulator(parameter);
      const auto key = accumulator->add_post_hook(std::make_unique<ForgetGradient>(parameter));
      hooks_.emplace_back(std::move(accumulator), key);
    }
  }
  ~WithoutGradients() {
    for (const auto& [accumulator, key] : hooks_) accumulator->del_post_hook(key);
  }
  WithoutGradients(const WithoutGradients&) = delete;
  WithoutGradients& operator=(const WithoutGradients&) = delete;

 private:
  std::vector<std::pair<torch_private::NodePtr, uintptr_t>> hooks_;
};

struct Measured {
  int64_t kept = 0;
  int64_t peak = 0;
};

Measured measure_once(const std::function<at::Tensor()>& forward) {
  const CountedMemory memory;
  const at::Tensor sum = forward().sum();
  const int64_t kept = memory.live_bytes();
  sum.backward();
  const int64_t left = memory.live_bytes();  // memory that kernels keep for their next call
  return {kept - left, memory.peak_bytes() - left};
}

Measured measure(const Model& model, std::vector<int64_t> shape, int64_t samples, c10::ScalarType dtype) {
  shape.insert(shape.begin(), samples);
  return measure_once([&] { return model(torch::zeros(shape, dtype)); });
}

}  // namespace

ActivationMemory measure_activations(const Model& model, const std::vector<int64_t>& sample_shape,
                                     c10::ScalarType dtype) {
  const WithoutGradients scope(*model.module());
  const Measured one = measure(model, sample_shape, 1, dtype);
  const Measured two = measure(model, sample_shape, 2, dtype);
  const int64_t sample = std::max<int64_t>(0, two.peak - one.peak);
  return {std::max<int64_t>(0, one.peak - sample), sample, std::max<int64_t>(0, two.kept - one.kept)};
}

int64_t measure_peak(const torch::nn::Module& module, const std::function<at::Tensor()>& forward) {
  const WithoutGradients scope(module);
  return measure_once(forward).peak;
}

}  // namespace lockstep::train
