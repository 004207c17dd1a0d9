#include "train/checkpointing.h"

#include <fmt/format.h>
#include <lockstep/error.h>
#include <lockstep/launch.h>

#include <algorithm>

#include "base/log.h"
#include "checkpoint/async_writer.h"
#include "checkpoint/catalog.h"
#include "checkpoint/reader.h"
#include "checkpoint/store.h"
#include "checkpoint/weights.h"
#include "comm/agree.h"
#include "comm/communicator_internal.h"
#include "parallel/save_shards.h"
#include "train/snapshot.h"
#include "train/step.h"

namespace lockstep::train {
namespace {

namespace fs = std::filesystem;

checkpoint::MetricKind metric_kind(const TrainConfig& config) {
  return {config.best_metric, config.best_mode};
}

checkpoint::StoreOptions store_options(const TrainConfig& config) {
  checkpoint::StoreOptions options;
  options.rotation.keep_last = config.checkpoint_best_only ? 1 : config.checkpoint_keep;
  options.rotation.keep_best = config.checkpoint_keep_best;
  options.rotation.metric = metric_kind(config);
  // One best checkpoint is the one that the criterion has marked; several are those with the best values.
  if (config.checkpoint_keep_best > 1 && !config.validation_criterion) {
    using Best = checkpoint::RotationRule::Best;
    options.rotation.best = config.best_mode == "max" ? Best::kMax : Best::kMin;
  }
  return options;
}

bool asks_for_checkpoints(const TrainConfig& config) {
  if (config.checkpoint_every > 0 || config.checkpoint_every_steps > 0 || config.checkpoint_every_min > 0 ||
      config.checkpoint_best_only) {
    return true;
  }
  return std::any_of(config.callbacks.begin(), config.callbacks.end(), [](const auto& callback) {
    const auto* action = dynamic_cast<const FitCallback*>(callback.get());
    return action != nullptr && (action->action() == FitAction::kSaveCheckpoint ||
                                 action->action() == FitAction::kSaveBestCheckpoint);
  });
}

// The checkpoint itself, or the newest one of a run folder.
fs::path checkpoint_at(const fs::path& path) {
  if (checkpoint::is_checkpoint(path)) return path;
  if (const auto entry = checkpoint::newest_valid(checkpoint::checkpoints_folder(path))) return entry->path;
  throw ConfigError("train", fmt::format("resume: '{}' is no checkpoint, and no run folder with a valid one",
                                         path.string()));
}

// The resume option of the run that saved this.
std::string began_from(const fs::path& path) {
  const Json metadata = checkpoint::Reader(path).metadata();
  const Json* const config = metadata.find("config");
  return config == nullptr ? "" : config->value("resume", "");
}

}  // namespace

struct Checkpointing::Writer {
  // For a replicated model, on rank 0.
  Writer(const fs::path& folder, const TrainConfig& config)
      : store(std::make_unique<checkpoint::Store>(folder, store_options(config))), async(*store) {}
  // For a sharded model, on all ranks; the store is rank 0's.
  Writer(std::unique_ptr<Writer> of_main_rank, Communicator own_group)
      : store(of_main_rank ? std::move(of_main_rank->store) : nullptr),
        group(std::move(own_group)),
        async([this](const checkpoint::Snapshot& snapshot) {
          return parallel::save_shards(group, store.get(), snapshot);
        }) {}

  std::unique_ptr<checkpoint::Store> store;
  Communicator group;  // of the writers only, which communicate while the training does
  checkpoint::AsyncWriter async;
};

Checkpointing::Checkpointing(const World& world, const TrainConfig& config, fs::path folder, bool sharded)
    : world_(world), config_(config), folder_(std::move(folder)), enabled_(asks_for_checkpoints(config)) {
  if (!enabled_) return;
  on_main_rank(world.communicator(), [&] {
    writer_ = std::make_unique<Writer>(folder_, config_);
    return std::string();
  });
  if (!sharded) return;
  writer_ = std::make_unique<Writer>(std::move(writer_), comm::make_host_group(world.communicator()));
}

Checkpointing::~Checkpointing() = default;

bool Checkpointing::due_after_step(int64_t step) const {
  return !config_.checkpoint_best_only && config_.checkpoint_every_steps > 0 &&
         step % config_.checkpoint_every_steps == 0;
}

bool Checkpointing::due_after_epoch(int64_t epoch) const {
  return !config_.checkpoint_best_only && config_.checkpoint_every > 0 &&
         epoch % config_.checkpoint_every == 0;
}

void Checkpointing::say_failure(const std::exception& error) const {
  base::log_warning("train", "a checkpoint was not saved; the previous one stays, and training continues: {}",
                    error.what());
}

bool Checkpointing::prepare(const checkpoint::Snapshot& snapshot) {
  if (!writer_) return true;
  wait_for_writer();  // otherwise an error of the previous save would replace this one
  try {
    writer_->async.prepare(snapshot);
    return true;
  } catch (const std::exception& error) {
    say_failure(error);
    return false;
  }
}

bool Checkpointing::attempt(const std::function<void()>& write) {
  try {
    write();
    return true;
  } catch (const std::exception& error) {
    ++failures_;
    if (world_.is_main()) say_failure(error);  // the others would say the same
    return false;
  }
}

bool Checkpointing::write_now(const checkpoint::Snapshot& snapshot) {
  if (!writer_) return true;
  wait_for_writer();
  return attempt([&] { writer_->async.save_now(snapshot); });
}

void Checkpointing::save(TrainState& state, const Saved& what) {
  resumable_ = what.resumable || !config_.checkpoint_weights_only;
  checkpoint::Snapshot snapshot = take_snapshot(state, world_, /*weights_only=*/!resumable_);
  snapshot.metric = what.metric;
  snapshot.metric_kind = metric_kind(config_);
  snapshot.best = what.best;
  const bool sharded = state.step.sharded() != nullptr;
  // A shard in a file must be written now: the next step changes it.
  bool at_once =
      !config_.checkpoint_async || std::any_of(snapshot.pieces.begin(), snapshot.pieces.end(),
                                               [](const auto& piece) { return piece.read != nullptr; });
  if (sharded) at_once = comm::any_rank(world_.communicator(), at_once);
  if (at_once) {
    // The weights were checked before, so the device has finished all earlier work.
    comm::throw_if_failed(world_.communicator(), "a save");
    not_begun_ = !write_now(snapshot);
    last_step_ = comm::any_rank(world_.communicator(), not_begun_) ? -1 : snapshot.step;
    return;
  }
  bool failed = !prepare(snapshot);
  // The weights are on the host now, so the device has finished all earlier work.
  comm::throw_if_failed(world_.communicator(), "a save");
  // Writers of a sharded model wait for each other: none starts if one cannot.
  if (sharded) failed = comm::any_rank(world_.communicator(), failed);
  if (failed) ++failures_;
  if (writer_ && !failed) {
    writer_->async.start();
    if (what.wait) failed = !wait_for_writer();
  }
  const bool lost = what.wait ? comm::any_rank(world_.communicator(), failed) : sharded && failed;
  last_step_ = lost ? -1 : snapshot.step;
  not_begun_ = failed;
}

fs::path Checkpointing::find() const {
  if (config_.resume == "never") return {};
  const auto own = checkpoint::newest_valid(folder_);
  if (config_.resume == "auto") return own ? own->path : fs::path();
  // A job that started from a path and was started again resumes from its own checkpoint.
  if (own && began_from(own->path) == config_.resume) return own->path;
  return checkpoint_at(config_.resume);
}

std::optional<fs::path> Checkpointing::resume(TrainState& state) {
  // One rank searches, so that all ranks resume from the same checkpoint.
  const fs::path path = on_main_rank(world_.communicator(), [this] { return find().string(); });
  if (path.empty()) return std::nullopt;
  const checkpoint::Reader reader(path);
  restore_snapshot(reader, state, world_, config_.seed);
  last_step_ = reader.step();
  // Nothing was trained since: another start from this checkpoint leads to the same state.
  resumable_ = true;
  return path;
}

bool Checkpointing::finish() {
  if (!enabled_) return true;
  // If the model is replicated only rank 0 knows whether the last save started.
  const bool failed = comm::any_rank(world_.communicator(), !wait_for_writer() || not_begun_);
  not_begun_ = false;
  if (failed) last_step_ = -1;
  return !failed;
}

bool Checkpointing::wait_for_writer() {
  return !writer_ || attempt([&] { writer_->async.wait(); });
}

}  // namespace lockstep::train
