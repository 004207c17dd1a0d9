#pragma once

// Data sets, the order in which ranks draw samples, and the loader that makes batches of them.
//
//   lockstep::Loader loader(lockstep::TensorDataset({x, y}), {.batch_size = 16, .shuffle = true});
//   trainer.fit(loader);

#include <ATen/core/Tensor.h>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <iterator>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace lockstep {

// The tensors of one sample: by convention the input, then the target, then whatever
// the loss wants beside them.
using Example = std::vector<at::Tensor>;

struct BatchPart;

// The tensors of several samples; the first dimension counts the samples.
struct Batch {
  std::vector<at::Tensor> tensors;
  // Of several loaders by name: a batch of each, and no tensors of its own.
  std::vector<BatchPart> parts;

  // The first and the second tensor. ConfigError: the dataset gives no such one.
  const at::Tensor& data() const;
  const at::Tensor& target() const;
  // The part of this name. ConfigError lists those there are.
  const Batch& operator[](std::string_view name) const;
  // The number of samples: of all parts together, 1 for a batch without data.
  int64_t size() const;
};

struct BatchPart {
  std::string name;
  Batch batch;
};

// Where a sample takes its randomness from (augmentation, noise). The seed of a sample
// depends on the loader's seed, the epoch and the sample's index alone, so that neither
// the number of threads nor the number of ranks changes what a sample looks like.
class SampleSeeds {
 public:
  SampleSeeds(int64_t seed, int64_t epoch);

  uint64_t of(int64_t index) const;

 private:
  uint64_t key_;
};

// Samples by index. A loader with workers calls get and get_batch from several threads
// at once. What they throw reaches the consumer of the loader as a ConfigError that
// names the sample, with the original nested in it.
class Dataset {
 public:
  virtual ~Dataset() = default;

  // Constant while a loader uses the dataset.
  virtual int64_t size() const = 0;

  // One sample, 0 <= index < size(). All samples have the same number of tensors, of
  // the same dtypes and shapes.
  virtual Example get(int64_t index, uint64_t seed) const = 0;

  // The samples of one batch, at least one. By default they come from get() and are
  // stacked; override it where a whole batch is cheaper, or stacks in another way.
  virtual Batch get_batch(std::span<const int64_t> indices, const SampleSeeds& seeds) const;

  // The same in page-locked memory, for a loader that pins; there is a GPU then. By default
  // a copy of get_batch(), of those tensors that are on the CPU; override it where a batch
  // can be written into such memory in the first place.
  virtual Batch get_pinned_batch(std::span<const int64_t> indices, const SampleSeeds& seeds) const;
};

// Tensors in memory: sample i is row i of each. The dataset shares their memory, a
// batch is a copy of its rows.
class TensorDataset : public Dataset {
 public:
  // ConfigError: no tensor, or first dimensions that differ.
  TensorDataset(std::initializer_list<at::Tensor> tensors)
      : TensorDataset(std::vector<at::Tensor>(tensors)) {}
  explicit TensorDataset(std::vector<at::Tensor> tensors);

  int64_t size() const override { return size_; }
  Example get(int64_t index, uint64_t seed) const override;
  Batch get_batch(std::span<const int64_t> indices, const SampleSeeds& seeds) const override;

 private:
  std::vector<at::Tensor> tensors_;
  int64_t size_ = 0;
};

// Samples made by a function of (index) or of (index, seed).
class FunctionDataset : public Dataset {
 public:
  using Function = std::function<Example(int64_t index, uint64_t seed)>;

  // ConfigError: a negative size, or no function.
  FunctionDataset(int64_t size, Function function);
  template <std::invocable<int64_t> F>
  requires(!std::invocable<F, int64_t, uint64_t>) FunctionDataset(int64_t size, F function)
      : FunctionDataset(size, Function([function = std::move(function)](int64_t index, uint64_t) -> Example {
                          return function(index);
                        })) {}

  int64_t size() const override { return size_; }
  Example get(int64_t index, uint64_t seed) const override { return function_(index, seed); }

 private:
  int64_t size_;
  Function function_;
};

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

// Where a trainer's batches come from: a loader, several of them by name, or nothing, for
// a model that needs no data. Refers to the loaders: they must live while it is used.
class DataSource {
 public:
  DataSource() = default;
  DataSource(const Loader& loader) : loader_(&loader) {}  // NOLINT: implicit
  // A batch then has a part of each name; the shortest loader ends the epoch.
  DataSource(std::map<std::string, const Loader*> loaders)  // NOLINT: implicit
      : loaders_(std::move(loaders)) {}

  bool empty() const { return loader_ == nullptr && loaders_.empty(); }
  const Loader* loader() const { return loader_; }
  const std::map<std::string, const Loader*>& loaders() const { return loaders_; }

 private:
  const Loader* loader_ = nullptr;
  std::map<std::string, const Loader*> loaders_;
};

}  // namespace lockstep
