#pragma once

#include <torch/torch.h>

namespace lockstep::optim {

// Random numbers from a seed. saved() is the generator's state as of now, a uint8 tensor;
// load() goes on from what has been copied into that tensor.
class RandomPoints {
 public:
  explicit RandomPoints(uint64_t seed)
      : generator_(at::detail::createCPUGenerator(seed)), state_(generator_.get_state()) {}

  at::Tensor normal(at::IntArrayRef sizes) { return at::randn(sizes, generator_, at::kDouble); }
  at::Tensor uniform(at::IntArrayRef sizes) { return at::rand(sizes, generator_, at::kDouble); }
  at::Tensor permutation(int64_t n) { return at::randperm(n, generator_, at::kLong); }
  int64_t below(int64_t n) { return at::randint(n, {1}, generator_, at::kLong).item<int64_t>(); }

  at::Tensor saved() const {
    state_.copy_(generator_.get_state());
    return state_;
  }
  void load() { generator_.set_state(state_); }

 private:
  at::Generator generator_;
  at::Tensor state_;
};

}  // namespace lockstep::optim
