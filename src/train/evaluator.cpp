#include "train/evaluator.h"

#include <fmt/format.h>
#include <lockstep/data.h>
#include <lockstep/error.h>
#include <lockstep/launch.h>
#include <lockstep/optim.h>
#include <torch/torch.h>

#include <chrono>
#include <limits>
#include <utility>

#include "train/batch_source.h"

namespace lockstep::train {
namespace {

// Selects samples of a loader for the complete data set.
using Part = std::function<Loader(const Loader&)>;

Part part_of_rank(const World& world) {
  return [&world](const Loader& whole) {
    if (whole.dataset_size() == 0) throw ConfigError("train", "nothing to evaluate: the dataset is empty");
    return whole.shard(world.rank(), world.size(), ShardKind::kEvaluation);
  };
}

Loader one_by_one(const Loader& whole) {
  return whole.with_batch_size(1).shard(0, 1, ShardKind::kEvaluation);
}

// The batches of one loader, or of several side by side until the first one ends.
class EvaluationBatches {
 public:
  EvaluationBatches(const DataSource& data, const Part& part, std::optional<int64_t> limit = {})
      : named_(!data.loaders().empty()), limit_(limit.value_or(std::numeric_limits<int64_t>::max())) {
    if (data.empty()) throw ConfigError("train", "nothing to evaluate: no data were given");
    if (data.loader() != nullptr) streams_.push_back({"", part(*data.loader()).epoch(0)});
    for (const auto& [name, loader] : data.loaders()) streams_.push_back({name, part(*loader).epoch(0)});
  }

  int64_t count() const {
    int64_t least = limit_;
    for (const Stream& stream : streams_) least = std::min(least, stream.epoch.num_batches());
    return least;
  }

  bool next(Batch& batch) {
    if (taken_ == limit_) return false;
    ++taken_;
    batch = Batch();
    for (Stream& stream : streams_) {
      Batch* part = stream.epoch.next();
      if (part == nullptr) return false;
      add_part(batch, named_, stream.name, *part);
    }
    return true;
  }

 private:
  struct Stream {
    std::string name;
    Loader::Epoch epoch;
  };

  const bool named_;
  const int64_t limit_;
  int64_t taken_ = 0;
  std::vector<Stream> streams_;
};

int64_t greatest_of_ranks(int64_t value, const World& world) {
  const at::Tensor greatest = torch::full({1}, value, torch::dtype(torch::kInt64).device(world.device()));
  world.communicator().all_reduce(greatest, ReduceOp::kMax).wait();
  return greatest.item<int64_t>();
}

// Runs for a batch: its number from 1, of how many. One that is there for the other ranks only has the
// number 0 and does not count.
using BatchFunction = std::function<void(const Batch&, int64_t number, int64_t batches)>;

// Calls `begin` with the number of this rank's batches, then `run` for them, and for the first sample, which
// does not count, until it was called `at_least` times; in step: as often as on any rank.
void run_batches(const DataSource& data, const World& world, const Evaluated& evaluated, int64_t at_least,
                 const std::function<void(int64_t batches)>& begin, const BatchFunction& run) {
  EvaluationBatches own(data, part_of_rank(world), evaluated.max_batches);
  const int64_t count = own.count();
  begin(count);
  if (evaluated.in_step) at_least = greatest_of_ranks(std::max(at_least, count), world);
  int64_t done = 0;
  Batch batch;
  for (; own.next(batch); ++done) run(batch, done + 1, count);
  if (done >= at_least) return;
  EvaluationBatches(data, one_by_one).next(batch);
  for (; done < at_least; ++done) run(batch, 0, count);
}

// Shows the position of one evaluation.
class EvaluationProgress {
 public:
  EvaluationProgress(const ShownEvaluation& shown, int ranks) : shown_(shown), ranks_(ranks) {}
  ~EvaluationProgress() { shown_.bar.end_evaluation(); }
  EvaluationProgress(const EvaluationProgress&) = delete;
  EvaluationProgress& operator=(const EvaluationProgress&) = delete;

  void begin(int64_t batches) { shown_.bar.begin({.batches = batches, .evaluation = shown_.name}); }

  void batch_done(int64_t done, int64_t batches, int64_t samples, const LossResult& result) {
    if (!shown_.bar.due()) return;
    const double loss = scalar_value(result.loss);  // waits for the device
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start_;
    shown_.bar.show({.batch = done,
                     .batches = batches,
                     .loss = loss,
                     .samples_per_s = static_cast<double>(samples * ranks_) / elapsed.count(),
                     .left = elapsed * static_cast<double>(batches - done) / static_cast<double>(done),
                     .evaluation = shown_.name});
  }

 private:
  const ShownEvaluation& shown_;
  const int ranks_;
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace

Evaluation evaluate(const DataSource& data, const World& world, c10::ScalarType dtype,
                    const std::function<LossResult(const Batch&)>& forward, const Evaluated& evaluated,
                    const TrainConfig& config, const BatchHooks& hooks, const ShownEvaluation& shown) {
  const EvaluationMode mode(evaluated.model);
  const torch::NoGradGuard no_grad;
  MetricSums sums(config.log_setup == "auto");
  DeviceCopy copy_to_device(world.device(), dtype);
  int64_t samples = 0;
  EvaluationProgress progress(shown, world.size());
  const auto begin = [&progress](int64_t batches) { progress.begin(batches); };
  run_batches(data, world, evaluated, 0, begin, [&](const Batch& batch, int64_t number, int64_t batches) {
    const Batch moved = copy_to_device(batch);
    if (number == 0) {
      forward(moved);
      return;
    }
    hooks.start(moved);
    const LossResult result = forward(moved);
    sums.add(result, moved.size());
    hooks.end(result);
    samples += moved.size();
    progress.batch_done(number, batches, samples, result);
  });
  MetricSums::Means means = sums.over(world.communicator());
  Evaluation evaluation;
  evaluation.samples = static_cast<int64_t>(means.samples);
  evaluation.loss = means.values.at("loss");
  means.values.erase("loss");
  evaluation.metrics = std::move(means.values);
  return evaluation;
}

at::Tensor predict(const Loader& whole, const World& world, c10::ScalarType dtype, const Evaluated& evaluated,
                   const TrainConfig& config) {
  const EvaluationMode mode(evaluated.model);
  const torch::NoGradGuard no_grad;
  const Autocast autocast(config.precision, world.device().type());
  std::vector<at::Tensor> outputs;
  DeviceCopy copy_to_device(world.device(), dtype);
  // At least once: a rank without samples must know the shape of the others' outputs.
  const auto begin = [](int64_t) {};
  run_batches(whole, world, evaluated, 1, begin, [&](const Batch& batch, int64_t number, int64_t) {
    const at::Tensor output =
        evaluated.model.num_inputs() == 1
            ? evaluated.model(copy_to_device(batch).data())
            : evaluated.model.call(inputs_of(copy_to_device(batch), evaluated.model)).first();
    outputs.push_back(number > 0 ? output : output.narrow(0, 0, 0));
  });
  const at::Tensor own = torch::cat(outputs).contiguous();
  return torch::cat(world.communicator().all_gather_uneven(own)).cpu();
}

}  // namespace lockstep::train
