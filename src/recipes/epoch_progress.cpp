#include "recipes/epoch_progress.h"

#include <lockstep/data.h>
#include <lockstep/json.h>
#include <lockstep/launch.h>
#include <lockstep/trainer.h>

#include <algorithm>

namespace lockstep::recipes {

EpochSteps::EpochSteps(const Trainer& trainer, const Loader& loader, int64_t batch_size)
    : accumulate_(trainer.config().accumulate_steps),
      samples_a_batch_(batch_size * trainer.world().size()),
      batches_(loader.with_batch_size(batch_size)
                   .shard(trainer.world().rank(), trainer.world().size(), ShardKind::kTrain)
                   .num_batches()),
      epoch_batches_(std::min(batches_, trainer.config().max_batches.value_or(batches_))) {}

void EpochSteps::begin(const Trainer& trainer) {
  first_ = trainer.result().first_batch / accumulate_;
  next_ = first_;
}

int64_t EpochSteps::samples_taken() const {
  const int64_t end = std::min(next_ * accumulate_, epoch_batches_);
  return (end - first_ * accumulate_) * samples_a_batch_;
}

TrainingTime::Part& TrainingTime::Part::operator+=(const Part& other) {
  seconds += other.seconds;
  images += other.images;
  return *this;
}

void TrainingTime::begin(const EpochSteps& steps) {
  steps_ = &steps;
  start_ = Clock::now();
}

TrainingTime::Part TrainingTime::running() const {
  if (steps_ == nullptr) return {};
  Part part = before_;
  part += {std::chrono::duration<double>(Clock::now() - start_).count(), steps_->samples_taken()};
  return part;
}

void TrainingTime::run(Trainer& trainer) {
  epoch_ = running();
  total_ += epoch_;
  before_ = {};
  steps_ = nullptr;
}

std::string TrainingTime::state() const {
  const Part part = running();
  return Json{{"seconds", total_.seconds},
              {"images", total_.images},
              {"epoch_seconds", part.seconds},
              {"epoch_images", part.images}}
      .dump();
}

void TrainingTime::load_state(const std::string& text) {
  const Json state = Json::parse(text);
  total_ = {state.at("seconds").get<double>(), state.at("images").get<int64_t>()};
  // Checkpoints of older versions have no part of an epoch.
  before_ = {state.value("epoch_seconds", 0.0), state.value("epoch_images", int64_t{0})};
}

void TrainingTime::reset() {
  steps_ = nullptr;
  before_ = {};
  total_ = {};
}

}  // namespace lockstep::recipes
