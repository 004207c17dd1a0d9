#pragma once

// Search without gradients, and a model's parameters as one vector.
//
//   auto search = lockstep::make_cma_es(lockstep::get_parameters(*model), {.sigma = 0.1, .seed = 1});
//   lockstep::Trainer trainer(world, model, *search, config);

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
// The same seed and losses give the same candidates. One thread at a time.
//
// Written here because the kept libraries own the loop. An algorithm of pagmo evolves a
// population by itself, and of its algorithms CMA-ES and differential evolution evaluate
// one point at a time; NLopt calls a function for one point. Neither hands out candidates,
// so neither can share them among ranks or stop for a checkpoint between two.
class GradientFreeOptimizer {
 public:
  virtual ~GradientFreeOptimizer() = default;

  // "cma_es", "one_plus_one", "random_search", "differential_evolution".
  virtual std::string kind() const = 0;
  // How many candidates it likes to hand out at once.
  virtual int64_t population() const = 0;
  int64_t dimension() const;

  // n new points, a row each. ConfigError: n < 1, or the points of the last ask() have
  // not been told.
  at::Tensor ask(int64_t n);
  // The losses of the points of the last ask(), in its order. A loss that is not finite
  // is worse than every other. ConfigError: shapes that do not fit.
  void tell(const at::Tensor& candidates, const at::Tensor& losses);
  // A point that was evaluated elsewhere, the starting point say: best() counts it.
  void observe(const at::Tensor& point, double loss);

  // The best point told or observed; the starting point and infinity before that.
  const at::Tensor& best() const { return best_; }
  double best_loss() const;
  int64_t evaluations() const;

  // Everything, the generator included, under "KIND/NAME"; only when all that was asked
  // has been told (ConfigError). The tensors are the object's own: clone what must not
  // change. Loading copies, and needs an object of the same kind, dimension and
  // population; ConfigError says what differs, and nothing is changed.
  NamedTensors state() const;
  void load_state(const NamedTensors& state);

 protected:
  explicit GradientFreeOptimizer(const at::Tensor& start);

  // n >= 1.
  virtual at::Tensor propose(int64_t n) = 0;
  // What propose() returned last, and losses without NaN: those are infinite.
  virtual void learn(const at::Tensor& candidates, const at::Tensor& losses) = 0;
  // The tensors themselves: loading copies into them.
  virtual NamedTensors own_state() const = 0;
  // Called after a load.
  virtual void loaded() {}

 private:
  void note(const at::Tensor& point, double loss);

  at::Tensor best_;
  at::Tensor counts_;  // best loss, evaluations
  int64_t asked_ = 0;  // candidates that wait for tell()
};

// Covariance matrix adaptation. Adapts the whole matrix up to full_dimension, its
// diagonal above (sep-CMA-ES). Needs two candidates at least.
struct CmaEsOptions {
  double sigma = 0.3;      // standard deviation of the first candidates
  int64_t population = 0;  // 0: 4 + floor(3 ln P)
  int64_t full_dimension = 200;
  uint64_t seed = 0;
};
std::unique_ptr<GradientFreeOptimizer> make_cma_es(const at::Tensor& start, const CmaEsOptions& options = {});

// Mutates the best point; the step grows when more than a fifth of the mutants are better,
// and shrinks otherwise. The first candidate is the start itself.
struct OnePlusOneOptions {
  double sigma = 0.3;
  uint64_t seed = 0;
};
std::unique_ptr<GradientFreeOptimizer> make_one_plus_one(const at::Tensor& start,
                                                         const OnePlusOneOptions& options = {});

// Independent normal points around the start; the first candidate is the start itself.
struct RandomSearchOptions {
  double sigma = 1;
  uint64_t seed = 0;
};
std::unique_ptr<GradientFreeOptimizer> make_random_search(const at::Tensor& start,
                                                          const RandomSearchOptions& options = {});

// DE/rand/1/bin. The first candidate is the start itself.
struct DifferentialEvolutionOptions {
  double sigma = 1;        // spread of the first population around the start
  int64_t population = 0;  // 0: min(10 P, 60), at least 8
  double weight = 0.7;     // of a difference, F
  double crossover = 0.9;  // probability, CR
  uint64_t seed = 0;
};
std::unique_ptr<GradientFreeOptimizer> make_differential_evolution(
    const at::Tensor& start, const DifferentialEvolutionOptions& options = {});

// The loss of one point.
using PointLoss = std::function<double(const at::Tensor& point)>;

// One round over all ranks: rank 0's candidates go to everyone, each rank evaluates its
// slice, every rank tells all losses. Trajectories do not depend on the number of ranks
// as far as the loss does not. Blocks; all ranks call it with the same n and the same
// optimizer. Returns the losses, [n].
at::Tensor evaluate_over_ranks(GradientFreeOptimizer& optimizer, int64_t n, const PointLoss& loss,
                               const Communicator& communicator);

// The trainable parameters (requires_grad) of a module as one vector, in the order of
// registration.

int64_t num_parameters(const torch::nn::Module& module);

// A copy: one dimension, float64 on the CPU whatever the parameters are, so that no
// parameter loses digits.
at::Tensor get_parameters(const torch::nn::Module& module);

// Copies `vector` into the parameters, converting to their dtypes and devices.
// ConfigError: it has not exactly num_parameters() elements in one dimension.
void set_parameters(torch::nn::Module& module, const at::Tensor& vector);

}  // namespace lockstep
