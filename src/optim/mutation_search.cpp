#include <lockstep/gradient_free.h>
#include <torch/torch.h>

#include <cmath>

#include "optim/argument.h"
#include "optim/random_points.h"

namespace lockstep {
namespace {

// Normal points around a point. The first of all is the start itself, unless its loss is
// known already.
class AroundPoint : public GradientFreeOptimizer {
 protected:
  AroundPoint(const at::Tensor& start, double sigma, uint64_t seed)
      : GradientFreeOptimizer(start), random_(seed), sigma_(at::full({1}, sigma, at::kDouble)) {}

  at::Tensor around(const at::Tensor& center, int64_t n) {
    at::Tensor points = center + sigma_ * random_.normal({n, dimension()});
    if (evaluations() == 0) points[0].copy_(center);
    return points;
  }
  NamedTensors own_state() const override { return {{"sigma", sigma_}, {"generator", random_.saved()}}; }
  void loaded() override { random_.load(); }

  optim::RandomPoints random_;
  at::Tensor sigma_;
};

class RandomSearch final : public AroundPoint {
 public:
  RandomSearch(const at::Tensor& start, const RandomSearchOptions& options)
      : AroundPoint(start, options.sigma, options.seed), center_(best().clone()) {}
  std::string kind() const override { return "random_search"; }
  int64_t population() const override { return 1; }

 protected:
  at::Tensor propose(int64_t n) override { return around(center_, n); }
  void learn(const at::Tensor&, const at::Tensor&) override {}
  NamedTensors own_state() const override {
    NamedTensors state = AroundPoint::own_state();
    state.emplace_back("center", center_);
    return state;
  }

 private:
  at::Tensor center_;
};

class OnePlusOne final : public AroundPoint {
 public:
  OnePlusOne(const at::Tensor& start, const OnePlusOneOptions& options)
      : AroundPoint(start, options.sigma, options.seed) {}
  std::string kind() const override { return "one_plus_one"; }
  int64_t population() const override { return 1; }

 protected:
  at::Tensor propose(int64_t n) override { return around(best(), n); }
  void learn(const at::Tensor&, const at::Tensor& losses) override {
    // best_loss() is still the parent's: the losses told now count after this.
    if (!std::isfinite(best_loss())) return;
    const auto share = (losses < best_loss()).to(at::kDouble).mean().item<double>();
    sigma_ *= std::exp((share - 0.2) / 0.8 / std::sqrt(static_cast<double>(dimension()) + 1));
  }
};

}  // namespace

std::unique_ptr<GradientFreeOptimizer> make_one_plus_one(const at::Tensor& start,
                                                         const OnePlusOneOptions& options) {
  optim::require_positive("one_plus_one", "sigma", options.sigma);
  return std::make_unique<OnePlusOne>(start, options);
}

std::unique_ptr<GradientFreeOptimizer> make_random_search(const at::Tensor& start,
                                                          const RandomSearchOptions& options) {
  optim::require_positive("random_search", "sigma", options.sigma);
  return std::make_unique<RandomSearch>(start, options);
}

}  // namespace lockstep
