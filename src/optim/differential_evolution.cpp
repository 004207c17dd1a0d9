#include <lockstep/gradient_free.h>
#include <torch/torch.h>

#include <algorithm>
#include <limits>

#include "optim/argument.h"
#include "optim/random_points.h"

namespace lockstep {
namespace {

// R. Storn and K. Price, "Differential Evolution", 1997: DE/rand/1/bin. Members are tried
// in turn; a trial takes its member's place when it is not worse.
class DifferentialEvolution final : public GradientFreeOptimizer {
 public:
  DifferentialEvolution(const at::Tensor& start, const DifferentialEvolutionOptions& options)
      : GradientFreeOptimizer(start),
        weight_(options.weight),
        crossover_(options.crossover),
        size_(options.population > 0 ? options.population : std::clamp<int64_t>(10 * dimension(), 8, 60)),
        random_(options.seed),
        members_(best() + options.sigma * random_.normal({size_, dimension()})),
        losses_(at::full({size_}, std::numeric_limits<double>::infinity(), at::kDouble)),
        told_(at::zeros({1}, at::kLong)) {
    members_[0].copy_(best());
  }

  std::string kind() const override { return "differential_evolution"; }
  int64_t population() const override { return size_; }

 protected:
  at::Tensor propose(int64_t n) override {
    const int64_t told = told_.item<int64_t>();
    at::Tensor points = at::empty({n, dimension()}, at::kDouble);
    for (int64_t i = 0; i < n; ++i) {
      // Every member is evaluated once before the first trial.
      points[i].copy_(told + i < size_ ? members_[told + i] : trial((told + i) % size_));
    }
    return points;
  }

  void learn(const at::Tensor& candidates, const at::Tensor& losses) override {
    const int64_t told = told_.item<int64_t>();
    for (int64_t i = 0; i < losses.numel(); ++i) {
      const int64_t target = (told + i) % size_;
      if (losses[i].item<double>() > losses_[target].item<double>()) continue;
      members_[target].copy_(candidates[i]);
      losses_[target] = losses[i];
    }
    told_ += losses.numel();
  }

  NamedTensors own_state() const override {
    return {{"members", members_}, {"losses", losses_}, {"told", told_}, {"generator", random_.saved()}};
  }
  void loaded() override { random_.load(); }

 private:
  at::Tensor trial(int64_t target) {
    std::vector<int64_t> others;
    const at::Tensor order = random_.permutation(size_);
    for (int64_t i = 0; others.size() < 3; ++i) {
      const auto member = order[i].item<int64_t>();
      if (member != target) others.push_back(member);
    }
    const at::Tensor mutant = members_[others[0]] + weight_ * (members_[others[1]] - members_[others[2]]);
    at::Tensor crossed = random_.uniform({dimension()}) < crossover_;
    crossed[random_.below(dimension())] = true;  // one number at least is new
    return at::where(crossed, mutant, members_[target]);
  }

  double weight_;
  double crossover_;
  int64_t size_;
  optim::RandomPoints random_;
  at::Tensor members_;  // [size, P]
  at::Tensor losses_;   // infinite before a member's evaluation
  at::Tensor told_;     // losses so far
};

}  // namespace

std::unique_ptr<GradientFreeOptimizer> make_differential_evolution(
    const at::Tensor& start, const DifferentialEvolutionOptions& options) {
  constexpr auto kWhat = "differential_evolution";
  optim::require_positive(kWhat, "sigma", options.sigma);
  optim::require(options.population == 0 || options.population >= 4, kWhat, "population",
                 "0 (chosen by dimension) or at least 4", options.population);
  optim::require(options.weight > 0 && options.weight <= 2, kWhat, "weight", "above 0 and at most 2",
                 options.weight);
  optim::require_fraction(kWhat, "crossover", options.crossover);
  return std::make_unique<DifferentialEvolution>(start, options);
}

}  // namespace lockstep
