#include <fmt/format.h>
#include <fmt/ranges.h>
#include <lockstep/communicator.h>
#include <lockstep/error.h>
#include <lockstep/json.h>
#include <lockstep/launch.h>
#include <lockstep/physics.h>
#include <torch/torch.h>

#include <cmath>

#include "base/mutex.h"
#include "base/split_mix.h"

namespace lockstep {

at::Tensor derivative(const at::Tensor& values, const at::Tensor& points) {
  // The sum has the gradients of all values, since each depends on its own point only.
  const auto gradients = torch::autograd::grad({values.sum()}, {points}, {}, /*retain_graph=*/true,
                                               /*create_graph=*/true, /*allow_unused=*/true);
  return gradients[0].defined() ? gradients[0] : torch::zeros_like(points);
}

Loss residual_loss(std::map<std::string, Residual> equations) {
  if (equations.empty()) throw ConfigError("train", "residual_loss() needs an equation");
  return [equations = std::move(equations)](const Batch& batch, const Model& model) -> LossResult {
    // Validation runs without gradients, and the residuals need those of the points.
    const bool is_training = torch::GradMode::is_enabled();
    const torch::AutoGradMode gradients(true);
    std::map<std::string, at::Tensor> metrics;
    at::Tensor loss;
    for (const auto& [name, residual] : equations) {
      const at::Tensor points = batch[name].data().detach().requires_grad_();
      at::Tensor mean = residual(points, model).square().mean();
      if (!is_training) mean = mean.detach();
      loss = loss.defined() ? loss + mean : mean;
      metrics[name] = mean;
    }
    return {loss, std::move(metrics)};
  };
}

// --- GradWeightedLoss ---

struct GradWeightedLoss::State {
  const World& world;
  const Loss loss;
  const std::string fixed_metric;
  const GradWeightOptions options;
  std::map<std::string, double> weights;

  double weight_of(const std::string& metric) const {
    const auto found = weights.find(metric);
    return found == weights.end() ? 1 : found->second;
  }

  // The gradient of a metric over all ranks, as one vector.
  at::Tensor gradient_of(const at::Tensor& metric, const std::vector<at::Tensor>& parameters) const {
    const auto gradients = torch::autograd::grad({metric}, parameters, {}, /*retain_graph=*/true,
                                                 /*create_graph=*/false, /*allow_unused=*/true);
    std::vector<at::Tensor> flat;
    for (size_t i = 0; i < gradients.size(); ++i) {
      flat.push_back((gradients[i].defined() ? gradients[i] : torch::zeros_like(parameters[i])).flatten());
    }
    at::Tensor gradient = torch::cat(flat);
    if (world.size() > 1) world.communicator().all_reduce(gradient, ReduceOp::kMean).wait();
    return gradient;
  }

  void update(const std::map<std::string, at::Tensor>& metrics, const Model& model) {
    std::vector<at::Tensor> parameters;
    for (const at::Tensor& parameter : model.module()->parameters()) {
      if (parameter.requires_grad()) parameters.push_back(parameter);
    }
    const double largest = gradient_of(metrics.at(fixed_metric), parameters).abs().max().item<double>();
    for (const auto& [name, metric] : metrics) {
      if (name == fixed_metric) continue;
      const double mean = gradient_of(metric, parameters).abs().mean().item<double>();
      if (mean == 0) continue;  // the term is satisfied: no weight changes that
      weights[name] = (1 - options.alpha) * weight_of(name) + options.alpha * largest / mean;
    }
  }
};

GradWeightedLoss::GradWeightedLoss(const World& world, Loss loss, std::string fixed_metric,
                                   const GradWeightOptions& options)
    : state_(new State{world, std::move(loss), std::move(fixed_metric), options, options.weights}) {
  if (!state_->loss) throw ConfigError("train", "GradWeightedLoss needs a loss with metrics");
  if (!(options.alpha >= 0 && options.alpha <= 1)) {
    throw ConfigError("train",
                      fmt::format("alpha of GradWeightedLoss must be between 0 and 1: {}", options.alpha));
  }
}

LossResult GradWeightedLoss::operator()(const Batch& batch, const Model& model) const {
  LossResult result = state_->loss(batch, model);
  if (!result.metrics.contains(state_->fixed_metric)) {
    std::vector<std::string> names;
    for (const auto& [name, metric] : result.metrics) names.push_back(name);
    throw ConfigError(
        "train",
        fmt::format("the loss has no metric '{}' to balance the others with: it has {}", state_->fixed_metric,
                    names.empty() ? "none" : fmt::format("{}", fmt::join(names, ", "))));
  }
  if (torch::GradMode::is_enabled()) state_->update(result.metrics, model);
  at::Tensor loss;
  for (auto& [name, metric] : result.metrics) {
    metric = metric * state_->weight_of(name);
    loss = loss.defined() ? loss + metric : metric;
  }
  return {loss, std::move(result.metrics)};
}

std::map<std::string, double> GradWeightedLoss::weights() const { return state_->weights; }

std::shared_ptr<Callback> GradWeightedLoss::keeper() const {
  class Keeper : public Callback {
   public:
    explicit Keeper(std::shared_ptr<State> state)
        : Callback(CallbackOptions{.on = Stage::kTrainStart}), state_(std::move(state)) {}

    std::string name() const override { return "grad_weights"; }
    std::string state() const override { return Json(state_->weights).dump(); }
    void load_state(const std::string& state) override {
      state_->weights = Json::parse(state).get<std::map<std::string, double>>();
    }
    void reset() override { state_->weights = state_->options.weights; }

   protected:
    void run(Trainer& trainer) override {}

   private:
    const std::shared_ptr<State> state_;
  };
  return std::make_shared<Keeper>(state_);
}

// --- R3 ---

struct R3Dataset::Impl {
  Draw draw;
  double release_threshold = 0;
  uint64_t seed = 0;

  base::Mutex mutex = {};
  // Workers of an endless loader read while the points change, so a change replaces the tensor and never
  // writes into it.
  at::Tensor points LOCKSTEP_GUARDED_BY(mutex) = {};
  int64_t draws LOCKSTEP_GUARDED_BY(mutex) = 0;  // calls of `draw`: each has another seed

  at::Tensor current_points() {
    const base::MutexLock lock(mutex);
    return points;
  }

  at::Tensor draw_points(int64_t count) LOCKSTEP_REQUIRES(mutex) {
    const torch::NoGradGuard no_grad;
    const uint64_t key = base::split_mix(seed ^ static_cast<uint64_t>(draws++));
    const at::Tensor drawn = draw(count, key);
    if (drawn.defined() && drawn.dim() > 0 && drawn.size(0) == count) return drawn.detach();
    throw ConfigError(
        "data", fmt::format("the function of an R3Dataset must draw {} points, one in each row", count));
  }
};

R3Dataset::R3Dataset(Draw draw, int64_t points, double release_threshold, uint64_t seed)
    : impl_(std::make_unique<Impl>()) {
  if (!draw) throw ConfigError("data", "an R3Dataset needs a function that draws points");
  if (points < 1) throw ConfigError("data", fmt::format("an R3Dataset needs at least one point: {}", points));
  if (!(release_threshold >= 0)) {
    throw ConfigError("data", fmt::format("release_threshold must be at least 0: {}", release_threshold));
  }
  impl_->draw = std::move(draw);
  impl_->release_threshold = release_threshold;
  impl_->seed = seed;
  const base::MutexLock lock(impl_->mutex);
  impl_->points = impl_->draw_points(points).clone();
}

R3Dataset::~R3Dataset() = default;

int64_t R3Dataset::size() const { return impl_->current_points().size(0); }

Example R3Dataset::get(int64_t index, uint64_t /*seed*/) const {
  return {impl_->current_points()[index].clone()};
}

Batch R3Dataset::get_batch(std::span<const int64_t> indices, const SampleSeeds& /*seeds*/) const {
  const at::Tensor rows = torch::tensor(std::vector<int64_t>(indices.begin(), indices.end()));
  Batch batch;
  batch.tensors.push_back(impl_->current_points().index_select(0, rows));
  return batch;
}

at::Tensor R3Dataset::points() const { return impl_->current_points().clone(); }

int64_t R3Dataset::update(const at::Tensor& fitness) {
  const torch::NoGradGuard no_grad;
  const base::MutexLock lock(impl_->mutex);
  const int64_t count = impl_->points.size(0);
  if (!fitness.defined() || fitness.numel() != count) {
    throw ConfigError("data", fmt::format("the fitness must have one number for each of {} points: it has {}",
                                          count, fitness.defined() ? fitness.numel() : 0));
  }
  const at::Tensor released =
      (fitness.detach().flatten().cpu() < impl_->release_threshold).nonzero().flatten();
  if (released.numel() > 0) {
    impl_->points = impl_->points.index_copy(0, released, impl_->draw_points(released.numel()));
  }
  return released.numel();
}

R3Sampling::R3Sampling(std::shared_ptr<R3Dataset> points, Fitness fitness, int64_t called_every)
    : Callback(CallbackOptions{.on = Stage::kTrainEpochStart, .called_every = called_every}),
      points_(std::move(points)),
      fitness_(std::move(fitness)) {
  if (!points_ || !fitness_) throw ConfigError("train", "R3Sampling needs points and a fitness function");
}

void R3Sampling::run(Trainer& trainer) {
  if (trainer.result().first_batch > 0) return;  // resumed within the epoch: the points are already its own
  const World& world = trainer.world();
  const at::Tensor points = points_->points().to(world.device()).requires_grad_();
  const auto parameters = trainer.model().module()->parameters();
  const at::Tensor at_dtype =
      parameters.empty() ? points : points.detach().to(parameters[0].scalar_type()).requires_grad_();
  const at::Tensor fitness =
      fitness_(at_dtype, trainer.model()).detach().to(torch::kDouble).flatten().contiguous();
  // Every rank must draw the same points again.
  if (world.size() > 1) world.communicator().broadcast(fitness).wait();
  released_ = points_->update(fitness);
}

std::string R3Sampling::state() const {
  const at::Tensor points = points_->points();
  const at::Tensor flat = points.to(torch::kDouble).flatten().contiguous();
  const auto* values = flat.const_data_ptr<double>();
  Json state;
  state["shape"] = points.sizes().vec();
  state["values"] = std::vector<double>(values, values + flat.numel());
  R3Dataset::Impl& data = *points_->impl_;
  const base::MutexLock lock(data.mutex);
  state["draws"] = data.draws;
  return state.dump();
}

void R3Sampling::load_state(const std::string& state) {
  const Json saved = Json::parse(state);
  const auto shape = saved.at("shape").get<std::vector<int64_t>>();
  const auto values = saved.at("values").get<std::vector<double>>();
  R3Dataset::Impl& data = *points_->impl_;
  const base::MutexLock lock(data.mutex);
  if (shape != data.points.sizes().vec()) {
    throw ConfigError("train",
                      fmt::format("the checkpoint has other points than the R3Dataset: [{}], not [{}]",
                                  fmt::join(shape, ", "), fmt::join(data.points.sizes(), ", ")));
  }
  data.points = torch::tensor(values, torch::kDouble).reshape(shape).to(data.points.scalar_type());
  saved.at("draws").get_to(data.draws);
}

}  // namespace lockstep
