#pragma once

// Data sets, the order in which the ranks draw samples, and the loader that makes batches. A program
// builds a loader for the whole data set; the trainer gives each rank its share of it.
//
// Example:
//
//   lockstep::Loader batches(lockstep::TensorDataset{x, y}, {.batch_size = 16, .shuffle = true});
//   for (lockstep::Batch& batch : batches.epoch(0)) {
//     torch::mse_loss(net->forward(batch.data()), batch.target()).backward();
//   }
//
// More: docs/data.md

#include <ATen/core/Tensor.h>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace lockstep {

// The tensors of one sample: by convention the input, then the target, then anything else that the loss
// needs.
using Example = std::vector<at::Tensor>;

struct BatchPart;

// The tensors of several samples. The first dimension of each tensor counts the samples.
struct Batch {
  std::vector<at::Tensor> tensors;
  // For several loaders by name: one batch for each loader. `tensors` is empty then.
  std::vector<BatchPart> parts;

  // The first and the second tensor. ConfigError: the data set has no such tensor.
  const at::Tensor& data() const;
  const at::Tensor& target() const;
  // The part with this name. ConfigError: there is none; it lists the names.
  const Batch& operator[](std::string_view name) const;
  // Number of samples: of all parts together; 1 for a batch without data.
  int64_t size() const;
};

struct BatchPart {
  std::string name;
  Batch batch;
};

// Seeds for the random numbers of a sample (augmentation, noise). A seed depends only on the loader's
// seed, the epoch and the sample's index, so a sample looks the same for any number of threads and
// ranks.
class SampleSeeds {
 public:
  SampleSeeds(int64_t seed, int64_t epoch);

  // The seed of the sample with this index.
  uint64_t of(int64_t index) const;

 private:
  uint64_t key_;
};

// Samples by index. A loader with workers calls get() and get_batch() from several threads at once. An
// exception that they throw reaches the consumer of the loader as a ConfigError that names the sample,
// with the original exception nested in it.
class Dataset {
 public:
  virtual ~Dataset() = default;

  // Number of samples; constant while a loader uses the data set.
  virtual int64_t size() const = 0;

  // One sample, 0 <= index < size(). All samples have the same number of tensors, with the same dtypes
  // and shapes.
  virtual Example get(int64_t index, uint64_t seed) const = 0;

  // The samples of one batch, at least one. The default calls get() and stacks the results. Override it
  // if a whole batch is cheaper, or must be stacked in another way.
  virtual Batch get_batch(std::span<const int64_t> indices, const SampleSeeds& seeds) const;

  // The same in page-locked memory, for a loader with pin_memory; called only if there is a GPU. The
  // default copies the CPU tensors of get_batch(). Override it if a batch can be written directly into
  // page-locked memory.
  virtual Batch get_pinned_batch(std::span<const int64_t> indices, const SampleSeeds& seeds) const;

  // A reader of these samples for one epoch, if they can only be read one after the other (see
  // StreamDataset). A loader then asks it, from one thread at a time. Null: any thread reads any sample.
  virtual std::shared_ptr<const Dataset> open_reader() const { return nullptr; }
};

// Samples that come one after the other: a file that is too large to index, a simulation, a queue. An
// epoch has size() samples, which is known beforehand, so that all ranks make equally many steps.
//
// Every rank opens the same stream and takes its share of it: with R ranks every R-th sample. So each
// sample is used once for any number of ranks, and after a resume, which skips what was used. Override
// Stream::skip() if that is cheaper than reading. The loader must not shuffle; it has at most one worker.
class StreamDataset : public Dataset {
 public:
  class Stream {
   public:
    virtual ~Stream() = default;
    // The next sample; nullopt: the stream has ended, which is an error before size() samples.
    virtual std::optional<Example> next() = 0;
    // Leaves out `count` samples. The default reads them.
    virtual void skip(int64_t count);
  };

  // Samples of an epoch.
  int64_t size() const override = 0;
  // Starts an epoch. The seed depends only on the loader's seed and the epoch; it is the same on all
  // ranks, and every call with it must give the same samples.
  virtual std::unique_ptr<Stream> open(uint64_t seed) const = 0;

  // Opens the stream and skips to the sample. Loaders use open_reader(), which keeps its place.
  Example get(int64_t index, uint64_t seed) const final;
  std::shared_ptr<const Dataset> open_reader() const final;
};

// Tensors in memory: sample i is row i of each tensor. The data set shares the memory of the tensors; a
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

// Samples that a function of (index) or of (index, seed) makes. The function is called from several
// threads at once if the loader has workers.
class FunctionDataset : public Dataset {
 public:
  using Function = std::function<Example(int64_t index, uint64_t seed)>;

  // ConfigError: the size is negative, or there is no function.
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

// The order of the samples in an epoch, as a program decides it: weighted, sorted by length, the hard
// samples twice. Ranks take their shares of it, and a resumed run continues in it, exactly as with
// shuffle.
struct EpochOrder {
  // Samples of an epoch; the same in all epochs.
  int64_t size = 0;
  // `size` indices of the data set, in any order, with repetitions. Called with the same values on all
  // ranks and after a resume, and must then return the same indices.
  std::function<std::vector<int64_t>(int64_t seed, int64_t epoch)> draw;
};

// Draws `size` samples with probabilities in the ratio of the weights, one for each sample of the data
// set. Returns the indices of PyTorch's WeightedRandomSampler(weights, size, replacement) with a generator
// that is seeded with seed + epoch. ConfigError: a weight that is negative or not finite, only zeros, or
// without replacement more samples than weights above zero.
EpochOrder weighted_order(const std::vector<double>& weights, int64_t size, bool replacement = true);

struct SamplerOptions {
  // true: a new random order for every epoch. false: the order of the data set.
  bool shuffle = true;
  // The order of the program instead; shuffle must be false.
  std::optional<EpochOrder> order = {};
  // Epoch e is shuffled with seed + e, of which the low 32 bits are used, as in PyTorch.
  int64_t seed = 0;
  // If the ranks cannot have equally many samples. true: leave out the last samples. false: repeat the
  // first ones.
  bool drop_last = false;
  int rank = 0;
  int world_size = 1;
};

// The position of a job in its data. Valid for any world size.
struct SamplerState {
  int64_t seed = 0;
  int64_t epoch = 0;
  // Samples of the epoch's order that all ranks together have used.
  int64_t position = 0;

  bool operator==(const SamplerState&) const = default;
};

// Decides which samples a rank trains on. Returns the indices of PyTorch's
// torch.utils.data.DistributedSampler, bit for bit, for the same options and epoch; with world_size 1
// the order of the whole data set. With SamplerOptions::order it shards that order in the same way.
//
// An epoch has one order of all samples, the same on every rank. It is extended by samples from its
// start until world_size divides its length (drop_last: shortened instead). Rank r takes places r, r +
// world_size, r + 2 * world_size, ... So all ranks get equally many samples, and after k samples on
// each rank exactly the first k * world_size places are used.
//
// Resume: the places from `position` on are distributed in the same way over the present number of
// ranks. If the world size has changed, still no sample is used twice or left out; only the padding at
// the end of the epoch depends on the world size.
//
// Memory: 4 bytes on every rank for each sample of the data set if shuffled, allocated at the first
// read of an epoch; none otherwise. One thread at a time. No communication.
class DistributedSampler {
 public:
  // ConfigError: a negative dataset_size, a rank outside the world, or too many samples to shuffle
  // (more than 2^32 - 1).
  explicit DistributedSampler(int64_t dataset_size, const SamplerOptions& options = {});

  // Starts this epoch from its beginning.
  void set_epoch(int64_t epoch);

  // This rank's samples from the current position to the end of the epoch; the same on all ranks.
  int64_t size() const;
  // The data set index of this rank's i-th sample from the current position. ConfigError, also below:
  // past the end of the epoch.
  int64_t index(int64_t i) const;
  // The same for out.size() samples, starting with the i-th.
  void read(int64_t i, std::span<int64_t> out) const;
  // The same for all of them.
  std::vector<int64_t> indices() const;

  // The state to save after every rank has used k samples from the current position. At the end of an
  // epoch it is the beginning of the next one.
  SamplerState state_after(int64_t k = 0) const;
  // Continues at a saved state, with its seed. ConfigError: a position outside the data set.
  void load_state(const SamplerState& state);

  int64_t dataset_size() const { return dataset_size_; }
  int64_t epoch() const { return epoch_; }
  const SamplerOptions& options() const { return options_; }

 private:
  const std::vector<uint32_t>& order() const;
  std::vector<uint32_t> draw_order() const;
  bool has_order() const { return options_.shuffle || options_.order; }

  int64_t dataset_size_;
  int64_t length_;  // of an epoch's order
  SamplerOptions options_;
  int64_t epoch_ = 0;
  int64_t position_ = 0;
  mutable std::shared_ptr<const std::vector<uint32_t>> order_;  // copies of a sampler share it
};

// Decides which samples a rank evaluates: every sample on exactly one rank. Each rank has one
// contiguous block, in rank order, so the concatenated results of the ranks are in the order of the
// data set. Block sizes differ by at most one, the larger blocks first; ranks may have different
// numbers of batches, or no samples.
class EvaluationSampler {
 public:
  // ConfigError: a negative dataset_size, or a rank outside the world.
  EvaluationSampler(int64_t dataset_size, int rank, int world_size);

  int64_t size() const { return size_; }
  // The data set index of this rank's first sample; the others follow it.
  int64_t first() const { return first_; }

 private:
  int64_t first_;
  int64_t size_;
};

struct LoaderOptions {
  // Samples of a batch on each rank.
  int64_t batch_size = 1;
  // true: a new random order for every epoch, as DistributedSampler makes it.
  bool shuffle = false;
  // Training only: the order of the program instead, for example weighted_order(). Excludes shuffle.
  std::optional<EpochOrder> order = {};
  // Training only. true: leave out the last samples if they do not fill a batch on every rank. false:
  // the last batch is smaller, and the first samples are repeated until all ranks have equally many.
  bool drop_last = false;
  // Seed of the order and of the random numbers of each sample.
  int64_t seed = 0;
  // Training only: one pass after the other without end. An epoch of the trainer then has
  // config.max_batches batches.
  bool endless = false;

  // Threads that read ahead; 0: the consumer's thread reads. Batches and their order are the same for
  // any number.
  int num_workers = 0;
  // How many batches each worker may be ahead of the consumer.
  int prefetch = 2;
  // Batches in page-locked memory, for faster copies to a GPU. Ignored with a warning if there is no
  // GPU.
  bool pin_memory = false;
};

enum class ShardKind {
  kTrain,      // DistributedSampler: all ranks have equally many batches
  kEvaluation  // EvaluationSampler: every sample once, in order; ignores shuffle, order and drop_last
};

// Batches of a data set, epoch by epoch.
//
// A program builds it for the whole data set; a trainer takes each rank's share with shard(). Without
// shard() it has all samples, for a world of one. Movable, not copyable. One thread at a time uses a
// loader and its epochs. No communication.
class Loader {
 public:
  class Epoch;

  // The loader shares or owns the data set. ConfigError names the option that is out of range.
  explicit Loader(std::shared_ptr<const Dataset> dataset, const LoaderOptions& options = {});
  template <std::derived_from<Dataset> D>
  explicit Loader(D dataset, const LoaderOptions& options = {})
      : Loader(std::make_shared<const D>(std::move(dataset)), options) {}

  // The same data in batches of another size.
  Loader with_batch_size(int64_t batch_size) const;

  // This rank's share of the whole data set, also if this loader is itself a share. It shares the data
  // set and starts at this loader's position.
  Loader shard(int rank, int world_size, ShardKind kind) const;

  // Batches and samples of this rank in a whole epoch. In evaluation ranks may differ; rank 0 has the
  // most.
  int64_t num_batches() const;
  int64_t num_samples() const;
  // Samples of the whole data set.
  int64_t dataset_size() const;
  const LoaderOptions& options() const;

  // The batches of one epoch; the workers start to read ahead. ConfigError: the loaded state is of
  // another epoch.
  Epoch epoch(int64_t epoch);
  // The same without end: one epoch after the other. ConfigError: an epoch is empty.
  Epoch stream(int64_t first_epoch = 0);

  // The position of training: after the last batch that the consumer got, independent of what was read
  // ahead. A loader of any world size and batch size can resume from it (see DistributedSampler).
  // ConfigError: an evaluation loader, which has no position to resume.
  SamplerState state() const;
  // The next call of epoch() or stream() must be for state.epoch; it continues at the position with the
  // state's seed. ConfigError: an evaluation loader, or a position outside the data set.
  void load_state(const SamplerState& state);

 private:
  struct Impl;

  explicit Loader(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}
  Epoch start(int64_t epoch, bool endless);

  std::shared_ptr<Impl> impl_;
};

// The batches of one epoch, which can be read once. It may outlive its loader. Destroying it early
// waits only for batches that a worker is reading at that moment.
class Loader::Epoch {
 public:
  class Iterator;

  Epoch(Epoch&&) noexcept;
  Epoch& operator=(Epoch&&) noexcept;
  ~Epoch();

  // The next batch; nullptr after the last. Blocks until a worker has read it. It is valid until the
  // next call; its tensors may be moved out. ConfigError: the data set failed; the next call returns
  // the batch after the failed one.
  Batch* next();

  // Batches of this rank from the start of this epoch object to the end of the epoch: fewer than the
  // loader's after a resume. For a stream: those of its first epoch.
  int64_t num_batches() const;

  // For range-based for loops; begin() reads the first batch.
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

// The source of a trainer's batches: a loader, several loaders by name, or nothing, for a model that
// needs no data. It refers to the loaders, which must outlive it.
class DataSource {
 public:
  DataSource() = default;
  DataSource(const Loader& loader) : loader_(&loader) {}  // NOLINT: implicit
  // Each batch has a part for each name; the shortest loader ends the epoch.
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
