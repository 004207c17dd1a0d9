#pragma once

#include <lockstep/loader.h>

#include <variant>
#include <vector>

namespace lockstep::data {

// One rank's part of a dataset, and how it is cut into batches. Arithmetic only.
class Shard {
 public:
  Shard(int64_t dataset_size, const LoaderOptions& options, int rank, int world_size, ShardKind kind);

  // Back to the start of the epoch, or on from a saved state.
  void set_state(const SamplerState& state);

  bool is_training() const { return std::holds_alternative<DistributedSampler>(sampler_); }
  // From the state that was set to the end of the epoch.
  int64_t num_samples() const;
  int64_t num_batches() const;
  // The samples of the batch, which is one of num_batches().
  void read(int64_t batch, std::vector<int64_t>& indices) const;
  // What to save once all ranks have used `batches` batches.
  SamplerState state_after(int64_t batches) const;

 private:
  std::variant<DistributedSampler, EvaluationSampler> sampler_;
  int64_t batch_size_;
  bool drop_last_;
  SamplerState state_;
};

// What a batch is to hold.
struct BatchRequest {
  std::vector<int64_t> indices;
  SampleSeeds seeds{0, 0};
  SamplerState state_after;
};

// The batches of an epoch, or of all epochs from one on, one after the other.
class BatchSequence {
 public:
  // ConfigError: endless over empty epochs.
  BatchSequence(Shard shard, const SamplerState& start, bool endless);

  // False after the last one.
  bool next(BatchRequest& request);
  // Of the first epoch, from the start on.
  int64_t num_batches() const { return num_batches_; }

 private:
  void begin_epoch(const SamplerState& state);

  Shard shard_;
  SamplerState state_;
  bool endless_;
  int64_t num_batches_ = 0;    // of the first epoch
  int64_t epoch_batches_ = 0;  // of the current epoch
  int64_t next_batch_ = 0;
};

}  // namespace lockstep::data
