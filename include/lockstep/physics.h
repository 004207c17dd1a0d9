#pragma once

// Physics-informed training: a network that satisfies equations. The loss is made of residuals at points,
// whose derivatives autograd computes; points can be drawn again where the residual is large.
//
// Example:
//
//   const lockstep::Loss decay = lockstep::residual_loss({
//       {"equation", [](const torch::Tensor& t, const lockstep::Model& u) {  // u' = -u
//          const torch::Tensor value = u(t);
//          return lockstep::derivative(value, t) + value;
//        }},
//       {"start", [](const torch::Tensor& t, const lockstep::Model& u) { return u(t) - 1; }},  // u(0) = 1
//   });
//   const lockstep::Loader inside(lockstep::TensorDataset{x}, {.batch_size = 32, .shuffle = true});
//   const lockstep::Loader start(lockstep::TensorDataset{torch::zeros({32, 1})}, {.batch_size = 32});
//   lockstep::Trainer trainer(world, net, optimizer, config, decay);
//   trainer.fit(std::map<std::string, const lockstep::Loader*>{{"equation", &inside}, {"start", &start}});
//
// More: docs/trainer.md

#include <ATen/core/Tensor.h>
#include <lockstep/callbacks.h>
#include <lockstep/data.h>
#include <lockstep/trainer.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace lockstep {

class World;

// The residual of an equation at points [n, dimensions]: left side minus right side, [n, ...]. The points
// require gradients.
using Residual = std::function<at::Tensor(const at::Tensor& points, const Model& model)>;

// d values / d points, [n, dimensions], with a graph, so that it can be derived again. `values` are [n]
// or [n, 1], and value i must depend on point i only.
at::Tensor derivative(const at::Tensor& values, const at::Tensor& points);

// For batches with parts by name: the mean squared residual of each equation at the points of the part of
// its name. The loss is their sum; each is a metric of the name of its equation.
Loss residual_loss(std::map<std::string, Residual> equations);

struct GradWeightOptions {
  // Weights at the start; 1 for metrics that are not here.
  std::map<std::string, double> weights = {};
  // How far a weight moves to its new value in each step: 0 never, 1 at once.
  double alpha = 0.9;
};

// Balances the terms of a loss by their gradients, as in "Understanding and mitigating gradient
// pathologies in physics-informed neural networks" (arXiv:2001.04536). The loss is the sum of the
// metrics of another loss, each times its weight. In each training step a weight w becomes
// (1 - alpha) w + alpha max|gradient of the fixed metric| / mean|gradient of this metric|; the weight of
// the fixed metric stays. The gradients are those of all ranks. Validation uses the weights as they are.
//
// Copies share the weights. Not with sharded parameters (zero.stage 3), a ConfigError: it calls autograd in
// forward.
class GradWeightedLoss {
 public:
  // ConfigError: alpha is outside of 0 to 1.
  GradWeightedLoss(const World& world, Loss loss, std::string fixed_metric,
                   const GradWeightOptions& options = {});

  // Collective in training. ConfigError: the loss has no metric of the fixed name.
  LossResult operator()(const Batch& batch, const Model& model) const;

  std::map<std::string, double> weights() const;
  // Keeps the weights in checkpoints: add it to TrainConfig::callbacks.
  std::shared_ptr<Callback> keeper() const;

 private:
  struct State;

  std::shared_ptr<State> state_;
};

// Points that are kept where a model is bad and drawn again where it is good ("retain, resample,
// release", arXiv:2207.02338). Sample i is {point i}. Give a loader the shared pointer, and keep it for
// update() or R3Sampling.
class R3Dataset : public Dataset {
 public:
  // Draws points [count, dimensions] at random from a seed.
  using Draw = std::function<at::Tensor(int64_t count, uint64_t seed)>;

  // ConfigError: no function, fewer than one point, a negative threshold, or points of another number.
  R3Dataset(Draw draw, int64_t points, double release_threshold = 0.1, uint64_t seed = 0);
  ~R3Dataset() override;

  int64_t size() const override;
  Example get(int64_t index, uint64_t seed) const override;
  Batch get_batch(std::span<const int64_t> indices, const SampleSeeds& seeds) const override;

  // All points; a copy.
  at::Tensor points() const;
  // Draws the points again whose fitness is below the threshold, and returns their number. Call it with
  // equal fitness on all ranks, and not while an epoch is read. ConfigError: not one number a point.
  int64_t update(const at::Tensor& fitness);

 private:
  friend class R3Sampling;
  struct Impl;

  std::unique_ptr<Impl> impl_;
};

// Updates an R3Dataset at the start of every epoch, or of every `called_every`-th. The fitness is that of
// rank 0 for all ranks. Checkpoints keep the points.
class R3Sampling : public Callback {
 public:
  // One number for each point, at least 0: large where the point must stay.
  using Fitness = std::function<at::Tensor(const at::Tensor& points, const Model& model)>;

  R3Sampling(std::shared_ptr<R3Dataset> points, Fitness fitness, int64_t called_every = 1);

  // Points that the last update drew again.
  int64_t released() const { return released_; }

  std::string name() const override { return "r3_sampling"; }
  std::string state() const override;
  void load_state(const std::string& state) override;

 protected:
  void run(Trainer& trainer) override;

 private:
  const std::shared_ptr<R3Dataset> points_;
  const Fitness fitness_;
  int64_t released_ = 0;
};

}  // namespace lockstep
