#pragma once

// Optimizers that need only the values of a loss, no gradients: CMA-ES, (1+1) evolution, random search,
// differential evolution. They propose candidates and get the losses back, so the ranks can share the
// evaluation. Also here: the parameters of a model as one vector.
//
// Example:
//
//   const auto search = lockstep::make_cma_es(lockstep::get_parameters(*net), {.sigma = 0.1, .seed = 1});
//   lockstep::Trainer trainer(world, net, *search, config, lockstep::mse);
//   trainer.fit(loader);
//
// More: docs/optim.md

#include <lockstep/weights.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace at {
class Tensor;
}

namespace torch::nn {
class Module;
}

namespace lockstep {

class Communicator;

// Minimises a function of a vector from its values alone. Points are float64 on the CPU.
//
//   auto optimizer = make_cma_es(get_parameters(*model), {.sigma = 0.1, .seed = 1});
//   for (...) {
//     auto candidates = optimizer->ask(optimizer->population());   // [n, P]
//     optimizer->tell(candidates, losses_of(candidates));          // [n]
//   }
//   set_parameters(*model, optimizer->best());
//
// The same seed and losses give the same candidates. One thread at a time. No communication.
//
// These algorithms are written here because the maintained libraries run the loop themselves. An
// algorithm of pagmo evolves a population by itself, and its CMA-ES and differential evolution evaluate
// one point at a time; NLopt calls a function for one point. Neither returns candidates, so neither can
// share them among ranks or stop for a checkpoint between two of them.
class GradientFreeOptimizer {
 public:
  virtual ~GradientFreeOptimizer() = default;

  // "cma_es", "one_plus_one", "random_search" or "differential_evolution".
  virtual std::string kind() const = 0;
  // The preferred number of candidates for ask().
  virtual int64_t population() const = 0;
  // Number of elements of a point.
  int64_t dimension() const;

  // Returns n new points, one in each row. ConfigError: n < 1, or tell() was not called for the last
  // points.
  at::Tensor ask(int64_t n);
  // The losses of the points of the last ask(), in their order. A loss that is not finite is worse than
  // every other loss. ConfigError: the shapes do not match.
  void tell(const at::Tensor& candidates, const at::Tensor& losses);
  // Adds a point that was evaluated elsewhere, for example the starting point, so that best() includes
  // it.
  void observe(const at::Tensor& point, double loss);

  // The best point so far; before the first one, the starting point with an infinite loss.
  const at::Tensor& best() const { return best_; }
  double best_loss() const;
  int64_t evaluations() const;

  // The complete state with the random generator, named "KIND/NAME". Only when every ask() has had its
  // tell() (ConfigError). The tensors are the object's own, not copies. Loading copies, and needs an
  // object of the same kind, dimension and population; ConfigError says what differs, and nothing is
  // changed.
  NamedTensors state() const;
  void load_state(const NamedTensors& state);

 protected:
  explicit GradientFreeOptimizer(const at::Tensor& start);

  // n >= 1.
  virtual at::Tensor propose(int64_t n) = 0;
  // Gets the last result of propose(), and losses without NaN: those are infinite.
  virtual void learn(const at::Tensor& candidates, const at::Tensor& losses) = 0;
  // The tensors themselves: a load copies into them.
  virtual NamedTensors own_state() const = 0;
  // Called after a load.
  virtual void loaded() {}

 private:
  void note(const at::Tensor& point, double loss);

  at::Tensor best_;
  at::Tensor counts_;  // best loss, evaluations
  int64_t asked_ = 0;  // candidates without tell()
};

// Covariance matrix adaptation. Adapts the full matrix up to full_dimension, and only its diagonal
// above that (sep-CMA-ES). Needs at least two candidates.
struct CmaEsOptions {
  double sigma = 0.3;      // standard deviation of the first candidates
  int64_t population = 0;  // 0: 4 + floor(3 ln P)
  int64_t full_dimension = 200;
  uint64_t seed = 0;
};
std::unique_ptr<GradientFreeOptimizer> make_cma_es(const at::Tensor& start, const CmaEsOptions& options = {});

// Mutates the best point. The step grows if more than a fifth of the mutants are better, and shrinks
// otherwise. The first candidate is the starting point.
struct OnePlusOneOptions {
  double sigma = 0.3;
  uint64_t seed = 0;
};
std::unique_ptr<GradientFreeOptimizer> make_one_plus_one(const at::Tensor& start,
                                                         const OnePlusOneOptions& options = {});

// Independent normal points around the starting point, which is the first candidate.
struct RandomSearchOptions {
  double sigma = 1;
  uint64_t seed = 0;
};
std::unique_ptr<GradientFreeOptimizer> make_random_search(const at::Tensor& start,
                                                          const RandomSearchOptions& options = {});

// DE/rand/1/bin. The first candidate is the starting point.
struct DifferentialEvolutionOptions {
  double sigma = 1;        // spread of the first population around the starting point
  int64_t population = 0;  // 0: min(10 P, 60), at least 8
  double weight = 0.7;     // F, the weight of a difference
  double crossover = 0.9;  // CR, a probability
  uint64_t seed = 0;
};
std::unique_ptr<GradientFreeOptimizer> make_differential_evolution(
    const at::Tensor& start, const DifferentialEvolutionOptions& options = {});

// Computes the loss of one point.
using PointLoss = std::function<double(const at::Tensor& point)>;

// One round over all ranks: rank 0 sends its candidates to all ranks, each rank evaluates a share of
// them, and every rank calls tell() with all losses. The result does not depend on the number of ranks
// if the loss does not. Collective; blocks: all ranks call it with the same n and equal optimizers.
// Returns the losses, [n].
at::Tensor evaluate_over_ranks(GradientFreeOptimizer& optimizer, int64_t n, const PointLoss& loss,
                               const Communicator& communicator);

// The functions below use the trainable parameters (requires_grad) of a module as one vector, in the
// order of registration.

int64_t num_parameters(const torch::nn::Module& module);

// A copy: one dimension, float64 on the CPU for all dtypes, so that no parameter loses digits.
at::Tensor get_parameters(const torch::nn::Module& module);

// Copies `vector` into the parameters and converts it to their dtypes and devices. ConfigError: it does
// not have exactly num_parameters() elements in one dimension.
void set_parameters(torch::nn::Module& module, const at::Tensor& vector);

}  // namespace lockstep
