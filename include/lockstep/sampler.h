#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace lockstep {

struct SamplerOptions {
  // A new random order every epoch; else the dataset's own order.
  bool shuffle = true;
  // The order of epoch e is drawn from seed + e, of which the low 32 bits count,
  // as in PyTorch.
  int64_t seed = 0;
  // When the samples do not divide evenly: drop the last ones instead of repeating
  // the first ones.
  bool drop_last = false;
  int rank = 0;
  int world_size = 1;
};

// Where a job stands in its data. Holds for any world size.
struct SamplerState {
  int64_t seed = 0;
  int64_t epoch = 0;
  // Samples of the epoch's order that all ranks together have used.
  int64_t position = 0;

  bool operator==(const SamplerState&) const = default;
};

// Which samples this rank trains on. Gives the indices of PyTorch's
// torch.utils.data.DistributedSampler, bit for bit, for the same options and epoch;
// with world_size 1 the order of the whole dataset.
//
// An epoch has one order of all samples, the same on every rank, repeated from its
// start until it divides by world_size (drop_last: cut until it does). Rank r takes
// places r, r + world_size, r + 2 * world_size, ...: all ranks get equally many, and
// after k samples a rank exactly the first k * world_size places are used.
//
// Resuming: the places from `position` on are dealt in the same way, over the ranks
// there are now. Where the world size has changed, no sample is used twice or left
// out: only the padding at the very end of the epoch depends on the world size.
//
// Memory: shuffled 4 bytes a sample of the dataset on every rank, made at the first
// read of an epoch; in order nothing. Not for several threads at once.
class DistributedSampler {
 public:
  // ConfigError: a negative dataset_size, a rank outside the world, or more samples
  // than can be shuffled (2^32 - 1).
  explicit DistributedSampler(int64_t dataset_size, const SamplerOptions& options = {});

  // Starts the epoch from its beginning.
  void set_epoch(int64_t epoch);

  // Samples of this rank from here to the end of the epoch: the same on all ranks.
  int64_t size() const;
  // The dataset index of this rank's i-th sample from here. ConfigError, here and
  // below: past the end of the epoch.
  int64_t index(int64_t i) const;
  // The same for out.size() samples from the i-th on.
  void read(int64_t i, std::span<int64_t> out) const;
  // The same for all of them.
  std::vector<int64_t> indices() const;

  // The state to save once every rank has used k samples from here.
  // At the end of an epoch it is the beginning of the next.
  SamplerState state_after(int64_t k = 0) const;
  // Goes on from a saved state, and with its seed. ConfigError: a position outside
  // the dataset.
  void load_state(const SamplerState& state);

  int64_t dataset_size() const { return dataset_size_; }
  int64_t epoch() const { return epoch_; }
  const SamplerOptions& options() const { return options_; }

 private:
  const std::vector<uint32_t>& order() const;

  int64_t dataset_size_;
  SamplerOptions options_;
  int64_t epoch_ = 0;
  int64_t position_ = 0;
  mutable std::shared_ptr<const std::vector<uint32_t>> order_;  // copies of a sampler share it
};

// Which samples this rank evaluates: every sample on exactly one rank, none twice.
// The dataset is cut into contiguous blocks in rank order, so that the ranks' results
// one after the other are in the dataset's order. Sizes differ by at most one, the
// first ranks have the larger ones; ranks may have different numbers of batches, or
// no sample at all.
class EvaluationSampler {
 public:
  // ConfigError: a negative dataset_size or a rank outside the world.
  EvaluationSampler(int64_t dataset_size, int rank, int world_size);

  int64_t size() const { return size_; }
  // The dataset index of this rank's first sample; the others follow it.
  int64_t first() const { return first_; }

 private:
  int64_t first_;
  int64_t size_;
};

}  // namespace lockstep
