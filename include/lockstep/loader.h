#pragma once

#include <lockstep/dataset.h>
#include <lockstep/sampler.h>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <utility>

namespace lockstep {

struct LoaderOptions {
  // Samples a batch, on each rank.
  int64_t batch_size = 1;
  // A new random order every epoch: that of DistributedSampler.
  bool shuffle = false;
  // Training: leave out the last samples where they do not fill a batch on every rank.
  // Else the last batch is smaller, and the first samples are repeated until all ranks
  // have equally many.
  bool drop_last = false;
  // Decides the order and the randomness of each sample.
  int64_t seed = 0;
  // Training: one pass after the other without end. What a trainer calls an epoch is
  // then config.max_batches batches.
  bool endless = false;

  // Threads that read ahead; 0 reads in the consumer's thread. Batches and their order
  // are the same for any number.
  int num_workers = 0;
  // Batches that each worker may be ahead of the consumer.
  int prefetch = 2;
  // Batches in page-locked memory, for faster copies to a GPU. Without a GPU it is
  // ignored with a warning.
  bool pin_memory = false;
};

enum class ShardKind {
  kTrain,      // DistributedSampler: equally many batches on all ranks
  kEvaluation  // EvaluationSampler: every sample once, in order; shuffle and drop_last do not apply
};

// Batches of a dataset, epoch by epoch.
//
//   Loader loader(TensorDataset{x, y}, {.batch_size = 16, .shuffle = true});
//   for (Batch& batch : loader.epoch(0)) step(batch.data(), batch.target());
//
// A user builds it for the whole dataset; a trainer takes each rank's part of it with
// shard(). Unsharded it trains on a world of one. Movable, not copyable. One thread at
// a time uses a loader and its epochs.
class Loader {
 public:
  class Epoch;

  // ConfigError names the option that is out of range.
  explicit Loader(std::shared_ptr<const Dataset> dataset, const LoaderOptions& options = {});
  template <std::derived_from<Dataset> D>
  explicit Loader(D dataset, const LoaderOptions& options = {})
      : Loader(std::make_shared<const D>(std::move(dataset)), options) {}

  // The same data in batches of another size.
  Loader with_batch_size(int64_t batch_size) const;

  // This rank's part of the whole dataset (of the dataset, not of an earlier part). It
  // shares the dataset, and starts where this loader stands.
  Loader shard(int rank, int world_size, ShardKind kind) const;

  // Batches and samples of this rank in a whole epoch. In evaluation ranks may differ;
  // rank 0 has the most.
  int64_t num_batches() const;
  int64_t num_samples() const;
  // Samples of the whole dataset.
  int64_t dataset_size() const;
  const LoaderOptions& options() const;

  // The batches of one epoch. Reading ahead starts here. ConfigError: a state of another
  // epoch was loaded.
  Epoch epoch(int64_t epoch);
  // The same without end: one epoch after the other. ConfigError: an epoch is empty.
  Epoch stream(int64_t first_epoch = 0);

  // Where training stands: after the batch that the consumer got last, whatever was read
  // ahead. Any world size and batch size may go on from it (see DistributedSampler).
  // ConfigError: an evaluation loader, which has nothing to resume.
  SamplerState state() const;
  // The next call to epoch() or stream() must be for state.epoch, and goes on there with
  // the state's seed. ConfigError: an evaluation loader, or a position outside the dataset.
  void load_state(const SamplerState& state);

 private:
  struct Impl;

  explicit Loader(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}
  Epoch start(int64_t epoch, bool endless);

  std::shared_ptr<Impl> impl_;
};

// The batches of an epoch, once. It outlives its loader; destroying it early waits only
// for the batches that are being read at that moment.
class Loader::Epoch {
 public:
  class Iterator;

  Epoch(Epoch&&) noexcept;
  Epoch& operator=(Epoch&&) noexcept;
  ~Epoch();

  // The next batch, or nullptr after the last. It stays valid until the next call; its
  // tensors may be moved out. ConfigError: the dataset failed; the batch after the failed
  // one comes with the next call.
  Batch* next();

  // Batches of this rank from where the epoch started to its end: less than the loader's
  // after a resume. Of a stream: of its first epoch.
  int64_t num_batches() const;

  // For range-for; begin() gets the first batch.
  Iterator begin();
  std::default_sentinel_t end() const { return {}; }

 private:
  friend class Loader;
  struct Impl;

  explicit Epoch(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

class Loader::Epoch::Iterator {
 public:
  using iterator_concept = std::input_iterator_tag;
  using difference_type = std::ptrdiff_t;
  using value_type = Batch;

  explicit Iterator(Epoch& epoch) : epoch_(&epoch), batch_(epoch.next()) {}

  Batch& operator*() const { return *batch_; }
  Batch* operator->() const { return batch_; }
  Iterator& operator++() {
    batch_ = epoch_->next();
    return *this;
  }
  void operator++(int) { ++*this; }
  bool operator==(std::default_sentinel_t) const { return batch_ == nullptr; }

 private:
  Epoch* epoch_;
  Batch* batch_;
};

inline Loader::Epoch::Iterator Loader::Epoch::begin() { return Iterator(*this); }

}  // namespace lockstep
