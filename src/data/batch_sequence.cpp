#include "data/batch_sequence.h"

#include <lockstep/error.h>

#include <algorithm>
#include <numeric>
#include <utility>

namespace lockstep::data {
namespace {

std::variant<DistributedSampler, EvaluationSampler> make_sampler(int64_t dataset_size,
                                                                 const LoaderOptions& options, int rank,
                                                                 int world_size, ShardKind kind) {
  if (kind == ShardKind::kEvaluation) return EvaluationSampler(dataset_size, rank, world_size);
  return DistributedSampler(dataset_size, {.shuffle = options.shuffle,
                                           .seed = options.seed,
                                           .drop_last = options.drop_last,
                                           .rank = rank,
                                           .world_size = world_size});
}

}  // namespace

Shard::Shard(int64_t dataset_size, const LoaderOptions& options, int rank, int world_size, ShardKind kind)
    : sampler_(make_sampler(dataset_size, options, rank, world_size, kind)),
      batch_size_(options.batch_size),
      drop_last_(options.drop_last && kind == ShardKind::kTrain),
      state_{.seed = options.seed} {}

void Shard::set_state(const SamplerState& state) {
  state_ = state;
  if (auto* sampler = std::get_if<DistributedSampler>(&sampler_)) sampler->load_state(state);
}

int64_t Shard::num_samples() const {
  return std::visit([](const auto& sampler) { return sampler.size(); }, sampler_);
}

int64_t Shard::num_batches() const {
  const int64_t samples = num_samples();
  const bool one_more = !drop_last_ && samples % batch_size_ != 0;
  return samples / batch_size_ + (one_more ? 1 : 0);
}

void Shard::read(int64_t batch, std::vector<int64_t>& indices) const {
  const int64_t first = batch * batch_size_;
  indices.resize(static_cast<size_t>(std::min(batch_size_, num_samples() - first)));
  if (const auto* sampler = std::get_if<DistributedSampler>(&sampler_)) {
    sampler->read(first, indices);
  } else {
    std::iota(indices.begin(), indices.end(), std::get<EvaluationSampler>(sampler_).first() + first);
  }
}

SamplerState Shard::state_after(int64_t batches) const {
  const SamplerState next_epoch{state_.seed, state_.epoch + 1, 0};
  if (batches >= num_batches()) return next_epoch;
  const auto* sampler = std::get_if<DistributedSampler>(&sampler_);
  return sampler != nullptr ? sampler->state_after(batches * batch_size_) : state_;
}

BatchSequence::BatchSequence(Shard shard, const SamplerState& start, bool endless)
    : shard_(std::move(shard)), endless_(endless) {
  begin_epoch(start);
  num_batches_ = epoch_batches_;
  if (!endless) return;
  Shard whole = shard_;
  whole.set_state({start.seed, start.epoch, 0});
  if (whole.num_batches() == 0) {
    throw ConfigError("data",
                      "a stream needs at least one batch an epoch: the dataset is empty, or drop_last leaves "
                      "nothing of it");
  }
}

bool BatchSequence::next(BatchRequest& request) {
  while (next_batch_ == epoch_batches_) {
    if (!endless_) return false;
    begin_epoch({state_.seed, state_.epoch + 1, 0});
  }
  shard_.read(next_batch_++, request.indices);
  request.seeds = SampleSeeds(state_.seed, state_.epoch);
  request.state_after = shard_.state_after(next_batch_);
  return true;
}

void BatchSequence::begin_epoch(const SamplerState& state) {
  state_ = state;
  shard_.set_state(state);
  epoch_batches_ = shard_.num_batches();
  next_batch_ = 0;
}

}  // namespace lockstep::data
