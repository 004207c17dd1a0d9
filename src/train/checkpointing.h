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

// The checkpoints of one run: when to save, saving beside the training, by rank 0 or, where
// the model is divided, by every rank for its parts, and going on from one. All ranks make
// the same calls.
class Checkpointing {
 public:
  // Takes the folder's lock on rank 0 where checkpoints are on. ConfigError on all
  // ranks: another run holds it, or the folder cannot be made.
  // `divided`: every rank writes its part.
  Checkpointing(const World& world, const TrainConfig& config, std::filesystem::path folder, bool divided);
  ~Checkpointing();
  Checkpointing(const Checkpointing&) = delete;
  Checkpointing& operator=(const Checkpointing&) = delete;

  // Whether the configuration asks for any.
  bool enabled() const { return enabled_; }
  bool due_after_step(int64_t step) const;
  bool due_after_epoch(int64_t epoch) const;

  // Waits for the copy of the state to host memory, or until it is on disk where
  // `wait`. Without that copy, and until it is on disk, where checkpoint_async is off or a part of
  // the state is in a file because host memory is short. A save that fails is said by a warning and
  // counted; training goes on, and the checkpoint before stays valid.
  // `best`: this is the best of what was validated and saved.
  void save(TrainState& state, std::optional<double> metric, bool best, bool wait = false);
  // Whether the state of this step is saved, or being saved.
  bool saved(int64_t step) const { return last_step_ == step; }
  // The step that was saved last, or resumed from; -1: none, or that save failed.
  int64_t last_step() const { return last_step_; }
  int64_t failures() const { return failures_; }

  // Goes on from the newest valid checkpoint, or from the one that config.resume names.
  // Returns its path, nullopt where there is none. ConfigError: it is of another model,
  // and says which parameters differ.
  std::optional<std::filesystem::path> resume(TrainState& state);

  // Until all is on disk. False on all ranks: on some it is not, which was said, and the
  // state of that step is not saved.
  bool finish();

 private:
  struct Writer;

  void say_failure(const std::exception& error) const;
  // Calls `write`, which waits until a checkpoint is on disk. False: it threw; the failure was counted
  // and reported.
  bool attempt(const std::function<void()>& write);
  // This rank's part of finish().
  bool wait_for_writer();
  // Copies what is to be written. False: it could not, which was said.
  bool prepare(const checkpoint::Snapshot& snapshot);
  // Writes it from where it lies. False: it could not, which was said.
  bool write_now(const checkpoint::Snapshot& snapshot);
  std::filesystem::path find() const;

  const World& world_;
  const TrainConfig& config_;
  const std::filesystem::path folder_;
  const bool enabled_;
  std::unique_ptr<Writer> writer_;  // where enabled: on rank 0, or on all
  int64_t last_step_ = -1;
  int64_t failures_ = 0;
  bool not_begun_ = false;  // the last save, on this rank
};

}  // namespace lockstep::train
