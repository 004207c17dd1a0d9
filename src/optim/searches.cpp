#include <lockstep/search.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "optim/argument.h"

namespace lockstep {
namespace {

// Random numbers from a seed. saved() returns the generator's present state as a uint8 tensor; load()
// sets the generator to the state that was copied into that tensor.
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

// --- random search and (1+1) ---

// Normally distributed points around a point. The very first one is the start itself, unless its loss is
// known.
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

  RandomPoints random_;
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
    // best_loss() is still the parent's: these losses are compared with it after this call.
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

// --- differential evolution ---

namespace {

// R. Storn and K. Price, "Differential Evolution", 1997: DE/rand/1/bin. Members are tried
// in turn; a trial replaces its member if it is not worse.
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
    crossed[random_.below(dimension())] = true;  // at least one element is new
    return at::where(crossed, mutant, members_[target]);
  }

  double weight_;
  double crossover_;
  int64_t size_;
  RandomPoints random_;
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

// --- CMA-ES ---
//
// N. Hansen, "The CMA Evolution Strategy: A Tutorial", arXiv:1604.00772, without negative
// weights; the separable variant by R. Ros and N. Hansen, PPSN 2008. Their names are kept.

namespace {

// The constants of a generation of n candidates in P dimensions.
struct Constants {
  at::Tensor weights;  // of the mu best
  double mu_eff, c_c, c_sigma, c_1, c_mu, damping, chi;

  Constants(int64_t n, int64_t dimension, bool separable) {
    const int64_t mu = n / 2;
    weights = std::log((static_cast<double>(n) + 1) / 2) - at::arange(1, mu + 1, at::kDouble).log();
    weights /= weights.sum();
    const auto p = static_cast<double>(dimension);
    mu_eff = 1 / weights.square().sum().item<double>();
    c_c = (4 + mu_eff / p) / (p + 4 + 2 * mu_eff / p);
    c_sigma = (mu_eff + 2) / (p + mu_eff + 5);
    c_1 = 2 / ((p + 1.3) * (p + 1.3) + mu_eff);
    c_mu = std::min(1 - c_1, 2 * (mu_eff - 2 + 1 / mu_eff) / ((p + 2) * (p + 2) + mu_eff));
    if (separable) {
      // P numbers are learned instead of the P^2 of the matrix.
      const double faster = std::min((p + 2) / 3, 1 / (c_1 + c_mu));
      c_1 *= faster;
      c_mu *= faster;
    }
    damping = 1 + 2 * std::max(0.0, std::sqrt((mu_eff - 1) / (p + 1)) - 1) + c_sigma;
    chi = std::sqrt(p) * (1 - 1 / (4 * p) + 1 / (21 * p * p));
  }
};

class CmaEs final : public GradientFreeOptimizer {
 public:
  CmaEs(const at::Tensor& start, const CmaEsOptions& options)
      : GradientFreeOptimizer(start),
        population_(options.population > 0
                        ? options.population
                        : 4 + static_cast<int64_t>(3 * std::log(static_cast<double>(dimension())))),
        separable_(dimension() > options.full_dimension),
        random_(options.seed),
        mean_(best().clone()),
        path_sigma_(at::zeros_like(mean_)),
        path_c_(at::zeros_like(mean_)),
        covariance_(separable_ ? at::ones_like(mean_) : at::eye(dimension(), at::kDouble)),
        scalars_(torch::tensor({options.sigma, 0.0}, at::kDouble)) {
    decompose();
  }

  std::string kind() const override { return "cma_es"; }
  int64_t population() const override { return population_; }

 protected:
  at::Tensor propose(int64_t n) override {
    if (n < 2) throw ConfigError("optim", fmt::format("cma_es compares two candidates at least: {}", n));
    const at::Tensor z = random_.normal({n, dimension()}) * axes_;
    return mean_ + sigma() * (separable_ ? z : at::mm(z, basis_.t()));
  }

  void learn(const at::Tensor& candidates, const at::Tensor& losses) override {
    if (!at::isfinite(losses).any().item<bool>()) {
      scalars_[0] *= 0.5;  // no loss is finite: sample closer to the mean
      return;
    }
    const int64_t n = candidates.size(0);
    const Constants k(n, dimension(), separable_);
    const at::Tensor order = std::get<1>(at::sort(losses, /*stable=*/true, 0, false)).narrow(0, 0, n / 2);
    const at::Tensor y = (candidates - mean_).index_select(0, order) / sigma();
    const at::Tensor step = at::mv(y.t(), k.weights);
    mean_ += sigma() * step;
    path_sigma_.mul_(1 - k.c_sigma).add_(whitened(step), std::sqrt(k.c_sigma * (2 - k.c_sigma) * k.mu_eff));
    scalars_[1] += 1;
    const double length = path_sigma_.norm().item<double>();
    const bool moving =
        length / std::sqrt(1 - std::pow(1 - k.c_sigma, 2 * scalars_[1].item<double>())) / k.chi <
        1.4 + 2 / (static_cast<double>(dimension()) + 1);
    path_c_.mul_(1 - k.c_c);
    if (moving) path_c_.add_(step, std::sqrt(k.c_c * (2 - k.c_c) * k.mu_eff));
    adapt_covariance(k, y, moving);
    scalars_[0] *= std::exp(std::min(1.0, k.c_sigma / k.damping * (length / k.chi - 1)));
    scalars_[0].clamp_min_(1e-150);  // squares must not vanish
    decompose();
  }

  NamedTensors own_state() const override {
    return {{"mean", mean_},       {"path_sigma", path_sigma_},
            {"path_c", path_c_},   {"covariance", covariance_},
            {"scalars", scalars_}, {"generator", random_.saved()}};
  }
  void loaded() override {
    random_.load();
    decompose();
  }

 private:
  double sigma() const { return scalars_[0].item<double>(); }

  // C^(-1/2) v.
  at::Tensor whitened(const at::Tensor& v) const {
    if (separable_) return v / axes_;
    return at::mv(basis_, at::mv(basis_.t(), v) / axes_);
  }

  void adapt_covariance(const Constants& k, const at::Tensor& y, bool moving) {
    const double lost = moving ? 0 : k.c_1 * k.c_c * (2 - k.c_c);
    covariance_.mul_(1 - k.c_1 - k.c_mu + lost);
    if (separable_) {
      covariance_.addcmul_(path_c_, path_c_, k.c_1);
      covariance_.add_(at::mv(y.square().t(), k.weights), k.c_mu);
    } else {
      covariance_.add_(at::outer(path_c_, path_c_), k.c_1);
      covariance_.add_(at::mm((y * k.weights.unsqueeze(1)).t(), y), k.c_mu);
    }
  }

  void decompose() {
    if (separable_) {
      axes_ = covariance_.clamp_min(1e-20).sqrt();
      return;
    }
    const auto [values, vectors] = at::linalg_eigh((covariance_ + covariance_.t()) / 2);
    basis_ = vectors;
    axes_ = values.clamp_min(1e-20).sqrt();
  }

  int64_t population_;
  bool separable_;
  RandomPoints random_;
  at::Tensor mean_, path_sigma_, path_c_;
  at::Tensor covariance_;  // [P, P], or [P] when separable
  at::Tensor scalars_;     // sigma, generations
  at::Tensor basis_;       // eigenvectors, columns; not when separable
  at::Tensor axes_;        // roots of the eigenvalues
};

}  // namespace

std::unique_ptr<GradientFreeOptimizer> make_cma_es(const at::Tensor& start, const CmaEsOptions& options) {
  optim::require_positive("cma_es", "sigma", options.sigma);
  optim::require(options.population == 0 || options.population >= 2, "cma_es", "population",
                 "0 (chosen by dimension) or at least 2", options.population);
  optim::require_at_least(0, "cma_es", "full_dimension", options.full_dimension);
  return std::make_unique<CmaEs>(start, options);
}

}  // namespace lockstep
