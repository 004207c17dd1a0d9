#include <ATen/Context.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <lockstep/error.h>
#include <lockstep/loader.h>

#include <algorithm>
#include <optional>

#include "base/log.h"
#include "data/batch_sequence.h"
#include "data/failure.h"
#include "data/prefetcher.h"

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
    throw;  // says already what is wrong
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
  bool resuming = false;   // the next epoch has to start at `state`
  int64_t num_epochs = 0;  // started; only the last one moves the state
};

struct Loader::Epoch::Impl {
  Impl(std::shared_ptr<Loader::Impl> loader, data::BatchSequence sequence)
      : loader(std::move(loader)),
        number(++this->loader->num_epochs),
        num_batches(sequence.num_batches()),
        sequence(std::move(sequence)) {}

  void start_workers(int num_workers) {
    auto read = [dataset = loader->dataset, pin_memory = loader->options.pin_memory](
                    const data::BatchRequest& request) { return fetch(*dataset, request, pin_memory); };
    prefetcher.emplace(std::move(sequence), std::move(read), num_workers,
                       num_workers * loader->options.prefetch);
  }

  bool read_next() {
    if (prefetcher) return prefetcher->next(current);
    if (!sequence.next(request)) return false;
    current = {fetch(*loader->dataset, request, loader->options.pin_memory), request.state_after};
    return true;
  }

  const std::shared_ptr<Loader::Impl> loader;
  const int64_t number;
  const int64_t num_batches;
  data::BatchSequence sequence;  // the prefetcher's, where there is one
  std::optional<data::Prefetcher> prefetcher;
  data::BatchRequest request;
  data::FetchedBatch current;
};

Loader::Loader(std::shared_ptr<const Dataset> dataset, const LoaderOptions& options) {
  if (!dataset) throw ConfigError("data", "a Loader needs a dataset");
  impl_ = std::make_shared<Impl>(std::move(dataset), validated(options), 0, 1, ShardKind::kTrain);
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
  data::Shard(impl_->shard).set_state(state);  // throws for a position that does not exist
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
