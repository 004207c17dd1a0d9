#pragma once

#include <lockstep/config.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>

namespace lockstep {
class World;
namespace checkpoint {
struct Snapshot;
}
}  // namespace lockstep

namespace lockstep::train {

struct TrainState;

// The checkpoints of one run: when to save, saving in the background, and resuming. Rank 0 writes; if
// the model is sharded, every rank writes its shards. Collective.
class Checkpointing {
 public:
  // Rank 0 locks the folder if checkpoints are on. `sharded`: every rank writes its shards. ConfigError
  // on all ranks: another run has the lock, or the folder cannot be created.
  Checkpointing(const World& world, const TrainConfig& config, std::filesystem::path folder, bool sharded);
  ~Checkpointing();
  Checkpointing(const Checkpointing&) = delete;
  Checkpointing& operator=(const Checkpointing&) = delete;

  // Whether the configuration asks for checkpoints.
  bool enabled() const { return enabled_; }
  bool due_after_step(int64_t step) const;
  bool due_after_epoch(int64_t epoch) const;

  // Waits for the copy of the state to host memory, or with `wait` until the checkpoint is on disk.
  // Makes no such copy, and waits for the disk, if checkpoint_async is off or if a part of the state is
  // in a file because host memory is short. A failed save is reported by a warning and counted;
  // training continues, and the previous checkpoint stays valid. `best`: the best validation among the
  // saved states.
  // `resumable`: with checkpoint_weights_only too, everything is saved.
  struct Saved {
    std::optional<double> metric = {};  // best_metric of a validation of these weights
    bool best = false;
    bool wait = false;
    bool resumable = false;
  };
  void save(TrainState& state, const Saved& what);
  // Whether the state of this step is saved, or is being saved.
  bool saved(int64_t step) const { return last_step_ == step; }
  // The same, with all that a training needs to resume at this step, not only the weights.
  bool saved_resumable(int64_t step) const { return saved(step) && resumable_; }
  // Weights that were loaded without the state of their training are the state of this step.
  void start_at(int64_t step) { last_step_ = step; }
  // The step that was saved last, or that of the loaded checkpoint; -1: none, or that save failed.
  int64_t last_step() const { return last_step_; }
  int64_t failures() const { return failures_; }

  // Resumes from the newest valid checkpoint, or from the one that config.resume names. Returns its
  // path; nullopt: there is none. ConfigError: it is a checkpoint of another model; the error names the
  // parameters that differ.
  std::optional<std::filesystem::path> resume(TrainState& state);

  // Waits until everything is on disk. False on all ranks: a rank could not write and has reported it,
  // and the state of that step is not saved.
  bool finish();

 private:
  struct Writer;

  void say_failure(const std::exception& error) const;
  // Calls `write`, which waits until a checkpoint is on disk. False: it threw; the failure was counted
  // and reported.
  bool attempt(const std::function<void()>& write);
  // This rank's part of finish().
  bool wait_for_writer();
  // Copies the state that is to be written. False: it failed, and the failure was reported.
  bool prepare(const checkpoint::Snapshot& snapshot);
  // Writes the state without a copy. False: it failed, and the failure was reported.
  bool write_now(const checkpoint::Snapshot& snapshot);
  std::filesystem::path find() const;

  const World& world_;
  const TrainConfig& config_;
  const std::filesystem::path folder_;
  const bool enabled_;
  std::unique_ptr<Writer> writer_;  // if enabled: on rank 0, or on all ranks
  int64_t last_step_ = -1;
  bool resumable_ = false;  // the state of last_step_ is more than weights
  int64_t failures_ = 0;
  bool not_begun_ = false;  // the last save did not start on this rank
};

}  // namespace lockstep::train
