#include "recipes/epoch_steps.h"

#include <lockstep/loader.h>
#include <lockstep/trainer.h>
#include <lockstep/world.h>

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

}  // namespace lockstep::recipes
