#include <pthread.h>

#include <ATen/Context.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <lockstep/data.h>
#include <lockstep/error.h>

#include <algorithm>
#include <exception>
#include <functional>
#include <numeric>
#include <optional>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "base/log.h"
#include "base/mutex.h"
#include "data/failure.h"

namespace lockstep::data {

// --- which samples a batch has ---

// One rank's shard of a dataset, split into batches. Arithmetic only.
class Shard {
 public:
  Shard(int64_t dataset_size, const LoaderOptions& options, int rank, int world_size, ShardKind kind)
      : sampler_(make_sampler(dataset_size, options, rank, world_size, kind)),
        batch_size_(options.batch_size),
        drop_last_(options.drop_last && kind == ShardKind::kTrain),
        state_{.seed = options.seed} {}

  // Moves to the start of an epoch, or to a saved position in it.
  void set_state(const SamplerState& state) {
    state_ = state;
    if (auto* sampler = std::get_if<DistributedSampler>(&sampler_)) sampler->load_state(state);
  }

  bool is_training() const { return std::holds_alternative<DistributedSampler>(sampler_); }

  // From the current state to the end of the epoch.
  int64_t num_samples() const {
    return std::visit([](const auto& sampler) { return sampler.size(); }, sampler_);
  }
  int64_t num_batches() const {
    const int64_t samples = num_samples();
    const bool one_more = !drop_last_ && samples % batch_size_ != 0;
    return samples / batch_size_ + (one_more ? 1 : 0);
  }

  // The samples of a batch, 0 <= batch < num_batches().
  void read(int64_t batch, std::vector<int64_t>& indices) const {
    const int64_t first = batch * batch_size_;
    indices.resize(static_cast<size_t>(std::min(batch_size_, num_samples() - first)));
    if (const auto* sampler = std::get_if<DistributedSampler>(&sampler_)) {
      sampler->read(first, indices);
    } else {
      std::iota(indices.begin(), indices.end(), std::get<EvaluationSampler>(sampler_).first() + first);
    }
  }

  // The state to save after all ranks have used `batches` batches.
  SamplerState state_after(int64_t batches) const {
    const SamplerState next_epoch{state_.seed, state_.epoch + 1, 0};
    if (batches >= num_batches()) return next_epoch;
    const auto* sampler = std::get_if<DistributedSampler>(&sampler_);
    return sampler != nullptr ? sampler->state_after(batches * batch_size_) : state_;
  }

 private:
  using Sampler = std::variant<DistributedSampler, EvaluationSampler>;

  static Sampler make_sampler(int64_t dataset_size, const LoaderOptions& options, int rank, int world_size,
                              ShardKind kind) {
    if (kind == ShardKind::kEvaluation) return EvaluationSampler(dataset_size, rank, world_size);
    return DistributedSampler(dataset_size, {.shuffle = options.shuffle,
                                             .order = options.order,
                                             .seed = options.seed,
                                             .drop_last = options.drop_last,
                                             .rank = rank,
                                             .world_size = world_size});
  }

  Sampler sampler_;
  int64_t batch_size_;
  bool drop_last_;
  SamplerState state_;
};

// The samples of a batch to read, and the state to save after it was used.
struct BatchRequest {
  std::vector<int64_t> indices;
  SampleSeeds seeds{0, 0};
  SamplerState state_after;
};

// The batches of one epoch, or of all epochs from one on, in order.
class BatchSequence {
 public:
  // ConfigError: endless, and an epoch has no batch.
  BatchSequence(Shard shard, const SamplerState& start, bool endless)
      : shard_(std::move(shard)), endless_(endless) {
    begin_epoch(start);
    num_batches_ = epoch_batches_;
    if (!endless) return;
    Shard whole = shard_;
    whole.set_state({start.seed, start.epoch, 0});
    if (whole.num_batches() == 0) {
      throw ConfigError("data",
                        "a stream needs at least one batch an epoch: the dataset is empty, or drop_last "
                        "leaves nothing of it");
    }
  }

  // False after the last batch.
  bool next(BatchRequest& request) {
    while (next_batch_ == epoch_batches_) {
      if (!endless_) return false;
      begin_epoch({state_.seed, state_.epoch + 1, 0});
    }
    shard_.read(next_batch_++, request.indices);
    request.seeds = SampleSeeds(state_.seed, state_.epoch);
    request.state_after = shard_.state_after(next_batch_);
    return true;
  }

  // Of the first epoch, from its start state on.
  int64_t num_batches() const { return num_batches_; }

 private:
  void begin_epoch(const SamplerState& state) {
    state_ = state;
    shard_.set_state(state);
    epoch_batches_ = shard_.num_batches();
    next_batch_ = 0;
  }

  Shard shard_;
  SamplerState state_;
  bool endless_;
  int64_t num_batches_ = 0;    // of the first epoch
  int64_t epoch_batches_ = 0;  // of the current epoch
  int64_t next_batch_ = 0;
};

// --- reading ahead ---

// Passes a batch on a device from the thread that made it to the thread that uses it. Each thread
// has its own stream, and streams do not wait for each other.
class DeviceHandover {
 public:
  DeviceHandover() = default;  // nothing to wait for
  // Call it in the thread that made the batch, after all work for the batch was started.
  explicit DeviceHandover(const Batch& batch) {
    for_each_on_device(batch, [this](const at::Tensor& tensor) {
      if (!stream_) stream_ = current_stream(tensor.device());
    });
    if (!stream_) return;
    made_.emplace(stream_->device_type());
    made_->record(*stream_);
  }

  // Call it in the thread that uses the batch. The stream of this thread waits; the host does not.
  // The memory of the batch is not reused before this stream is done with it.
  void take(const Batch& batch) const {
    if (!stream_) return;
    const c10::Stream user = current_stream(stream_->device());
    if (user == *stream_) return;
    made_->block(user);
    for_each_on_device(batch, [&user](const at::Tensor& tensor) { tensor.record_stream(user); });
  }

 private:
  static void for_each_on_device(const Batch& batch, const std::function<void(const at::Tensor&)>& function) {
    for (const at::Tensor& tensor : batch.tensors) {
      if (tensor.defined() && tensor.is_cuda()) function(tensor);
    }
    for (const BatchPart& part : batch.parts) for_each_on_device(part.batch, function);
  }

  static c10::Stream current_stream(c10::Device device) {
    return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
  }

  std::optional<c10::Stream> stream_;  // nullopt: the batch is in host memory
  std::optional<c10::Event> made_;
};

// A batch, and the state to save after it was used.
struct FetchedBatch {
  Batch batch;
  SamplerState state_after;
  DeviceHandover handover = {};  // from the thread that read it
};

using Fetch = std::function<Batch(const BatchRequest&)>;

// Threads that read the batches of a sequence ahead of one consumer, which gets them in the order of
// the sequence.
class Prefetcher {
 public:
  // Starts the threads. Several threads call `fetch` at the same time. At most `capacity` batches
  // are read and not yet taken.
  Prefetcher(BatchSequence sequence, Fetch fetch, int num_workers, int capacity)
      : fetch_(std::move(fetch)), sequence_(std::move(sequence)), slots_(static_cast<size_t>(capacity)) {
    try {
      for (int i = 0; i < num_workers; ++i) workers_.emplace_back([this] { run(); });
    } catch (...) {  // the system has no more threads
      stop();
      throw;
    }
  }
  // Waits for the running calls of fetch.
  ~Prefetcher() { stop(); }

  // Blocks until the next batch was read. False after the last one. Throws what fetch threw for
  // this batch.
  bool next(FetchedBatch& out) {
    Slot slot;
    {
      base::MutexLock lock(mutex_);
      while (!slot_of(consumed_).ready && !(ended_ && consumed_ == taken_)) ready_.wait(lock);
      if (!slot_of(consumed_).ready) return false;
      slot = std::exchange(slot_of(consumed_), {});
      ++consumed_;
    }
    free_.notify_one();
    if (slot.error) std::rethrow_exception(slot.error);
    out = std::move(slot.fetched);
    out.handover.take(out.batch);
    return true;
  }

 private:
  struct Slot {
    bool ready = false;
    FetchedBatch fetched;
    std::exception_ptr error;
  };

  // The body of a worker.
  void run() {
    pthread_setname_np(pthread_self(), "lockstep-data");
    BatchRequest request;
    int64_t ticket = 0;
    while (take(request, ticket)) {
      Slot slot = fetch(request);
      bool consumer_waits = false;
      {
        const base::MutexLock lock(mutex_);
        slot_of(ticket) = std::move(slot);
        consumer_waits = ticket == consumed_;
      }
      if (consumer_waits) ready_.notify_one();
    }
  }

  // Blocks until a slot is free. False: nothing is left to read.
  bool take(BatchRequest& request, int64_t& ticket) {
    {
      base::MutexLock lock(mutex_);
      while (!ended_ && taken_ - consumed_ >= static_cast<int64_t>(slots_.size())) free_.wait(lock);
      if (ended_) return false;
      try {
        if (sequence_.next(request)) {
          ticket = taken_++;
          return true;
        }
      } catch (...) {  // for example no memory for the order of the next epoch
        slot_of(taken_++) = {.ready = true, .fetched = {}, .error = std::current_exception()};
      }
      ended_ = true;
    }
    ready_.notify_one();
    free_.notify_all();
    return false;
  }

  Slot fetch(const BatchRequest& request) noexcept {
    try {
      FetchedBatch fetched{fetch_(request), request.state_after};
      fetched.handover = DeviceHandover(fetched.batch);
      return {.ready = true, .fetched = std::move(fetched), .error = nullptr};
    } catch (...) {
      return {.ready = true, .fetched = {}, .error = std::current_exception()};
    }
  }

  void stop() {
    {
      const base::MutexLock lock(mutex_);
      ended_ = true;
    }
    free_.notify_all();
    for (std::thread& worker : workers_) worker.join();
  }

  Slot& slot_of(int64_t ticket) LOCKSTEP_REQUIRES(mutex_) {
    return slots_[static_cast<size_t>(ticket) % slots_.size()];
  }

  const Fetch fetch_;
  base::Mutex mutex_;
  base::Condition ready_;  // for the consumer: the next batch was read, or the end
  base::Condition free_;   // for the workers: a slot is free, or the end

  // Batches are numbered by tickets: the consumer has taken [0, consumed_); [consumed_, taken_) are
  // read or being read. Ticket t is in slot_of(t).
  BatchSequence sequence_ LOCKSTEP_GUARDED_BY(mutex_);
  std::vector<Slot> slots_ LOCKSTEP_GUARDED_BY(mutex_);
  int64_t taken_ LOCKSTEP_GUARDED_BY(mutex_) = 0;
  int64_t consumed_ LOCKSTEP_GUARDED_BY(mutex_) = 0;
  // No more tickets: the sequence ended or failed, or stop() was called.
  bool ended_ LOCKSTEP_GUARDED_BY(mutex_) = false;

  std::vector<std::thread> workers_;
};

}  // namespace lockstep::data

// --- Loader ---

namespace lockstep {
namespace {

void check_at_least(const char* option, int64_t value, int64_t least) {
  if (value < least)
    throw ConfigError("data", fmt::format("{} must be at least {}: {}", option, least, value));
}

LoaderOptions validated(LoaderOptions options) {
  check_at_least("batch_size", options.batch_size, 1);
  check_at_least("num_workers", options.num_workers, 0);
  check_at_least("prefetch", options.prefetch, 1);
  if (options.pin_memory && !at::hasCUDA()) {
    base::log_warning("data", "pin_memory is ignored: there is no GPU");
    options.pin_memory = false;
  }
  return options;
}

Batch fetch(const Dataset& dataset, const data::BatchRequest& request, bool pin_memory) {
  const at::NoGradGuard no_grad;
  try {
    return pin_memory ? dataset.get_pinned_batch(request.indices, request.seeds)
                      : dataset.get_batch(request.indices, request.seeds);
  } catch (const Error&) {
    throw;  // already has a clear text
  } catch (...) {
    data::rethrow_as_config_error(
        fmt::format("the dataset failed at the batch of samples {}", fmt::join(request.indices, ", ")));
  }
}

}  // namespace

struct Loader::Impl {
  Impl(std::shared_ptr<const Dataset> dataset, const LoaderOptions& options, int rank, int world_size,
       ShardKind kind)
      : dataset(std::move(dataset)),
        options(options),
        shard(this->dataset->size(), options, rank, world_size, kind),
        state{.seed = options.seed} {}

  void check_training(const char* operation) const {
    if (shard.is_training()) return;
    throw ConfigError("data",
                      fmt::format("{} is for training only: an evaluation always runs whole", operation));
  }

  const std::shared_ptr<const Dataset> dataset;
  const LoaderOptions options;
  const data::Shard shard;  // at the start of an epoch

  SamplerState state;
  bool resuming = false;   // the next epoch must start at `state`
  int64_t num_epochs = 0;  // number of epochs started; only the last one moves the state
};

struct Loader::Epoch::Impl {
  Impl(std::shared_ptr<Loader::Impl> loader, data::BatchSequence sequence)
      : loader(std::move(loader)),
        number(++this->loader->num_epochs),
        num_batches(sequence.num_batches()),
        sequence(std::move(sequence)) {
    dataset = this->loader->dataset->open_reader();
    if (!dataset) dataset = this->loader->dataset;
  }

  void start_workers(int num_workers) {
    auto read = [dataset = dataset, pin_memory = loader->options.pin_memory](
                    const data::BatchRequest& request) { return fetch(*dataset, request, pin_memory); };
    prefetcher.emplace(std::move(sequence), std::move(read), num_workers,
                       num_workers * loader->options.prefetch);
  }

  bool read_next() {
    if (prefetcher) return prefetcher->next(current);
    if (!sequence.next(request)) return false;
    current = {fetch(*dataset, request, loader->options.pin_memory), request.state_after};
    return true;
  }

  const std::shared_ptr<Loader::Impl> loader;
  std::shared_ptr<const Dataset> dataset;  // the loader's, or a reader of it
  const int64_t number;
  const int64_t num_batches;
  data::BatchSequence sequence;  // moved to the prefetcher if there is one
  std::optional<data::Prefetcher> prefetcher;
  data::BatchRequest request;
  data::FetchedBatch current;
};

Loader::Loader(std::shared_ptr<const Dataset> dataset, const LoaderOptions& options) {
  if (!dataset) throw ConfigError("data", "a Loader needs a dataset");
  LoaderOptions checked = validated(options);
  if (dataset->open_reader() != nullptr) {
    if (options.shuffle || options.order) {
      throw ConfigError("data", "a StreamDataset has one order: leave out shuffle and order of its loader");
    }
    checked.num_workers = std::min(checked.num_workers, 1);
  }
  impl_ = std::make_shared<Impl>(std::move(dataset), checked, 0, 1, ShardKind::kTrain);
}

Loader Loader::with_batch_size(int64_t batch_size) const {
  LoaderOptions options = impl_->options;
  options.batch_size = batch_size;
  Loader other(impl_->dataset, options);
  other.impl_->state = impl_->state;
  other.impl_->resuming = impl_->resuming;
  return other;
}

Loader Loader::shard(int rank, int world_size, ShardKind kind) const {
  auto part = std::make_shared<Impl>(impl_->dataset, impl_->options, rank, world_size, kind);
  part->state = impl_->state;
  part->resuming = impl_->resuming && kind == ShardKind::kTrain;
  return Loader(std::move(part));
}

int64_t Loader::num_batches() const { return impl_->shard.num_batches(); }

int64_t Loader::num_samples() const { return impl_->shard.num_samples(); }

int64_t Loader::dataset_size() const { return impl_->dataset->size(); }

const LoaderOptions& Loader::options() const { return impl_->options; }

Loader::Epoch Loader::epoch(int64_t epoch) { return start(epoch, false); }

Loader::Epoch Loader::stream(int64_t first_epoch) { return start(first_epoch, true); }

Loader::Epoch Loader::start(int64_t epoch, bool endless) {
  if (impl_->resuming && epoch != impl_->state.epoch) {
    throw ConfigError("data", fmt::format("the loader resumes in epoch {}: epoch {} was asked for",
                                          impl_->state.epoch, epoch));
  }
  SamplerState from{impl_->state.seed, epoch, impl_->resuming ? impl_->state.position : 0};
  auto part = std::make_unique<Epoch::Impl>(impl_, data::BatchSequence(impl_->shard, from, endless));
  const int64_t most_workers = endless ? impl_->options.num_workers : part->num_batches;
  const int64_t num_workers = std::min<int64_t>(impl_->options.num_workers, most_workers);
  if (num_workers > 0) part->start_workers(static_cast<int>(num_workers));
  impl_->state = from;
  impl_->resuming = false;
  return Epoch(std::move(part));
}

SamplerState Loader::state() const {
  impl_->check_training("the state of a loader");
  return impl_->state;
}

void Loader::load_state(const SamplerState& state) {
  impl_->check_training("loading a state");
  data::Shard(impl_->shard).set_state(state);  // ConfigError for a position outside the dataset
  impl_->state = state;
  impl_->resuming = true;
  ++impl_->num_epochs;
}

Loader::Epoch::Epoch(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Loader::Epoch::Epoch(Epoch&&) noexcept = default;
Loader::Epoch& Loader::Epoch::operator=(Epoch&&) noexcept = default;
Loader::Epoch::~Epoch() = default;

Batch* Loader::Epoch::next() {
  if (!impl_->read_next()) return nullptr;
  if (impl_->number == impl_->loader->num_epochs) impl_->loader->state = impl_->current.state_after;
  return &impl_->current.batch;
}

int64_t Loader::Epoch::num_batches() const { return impl_->num_batches; }

}  // namespace lockstep
