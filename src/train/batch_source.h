#pragma once

#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <c10/core/ScalarType.h>
#include <c10/core/Stream.h>
#include <lockstep/config.h>
#include <lockstep/data.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

namespace lockstep::train {

// This rank's training batches, epoch by epoch, whatever they come from: one loader,
// several, or none.
class BatchSource {
 public:
  // ConfigError: no batch in an epoch, or batch sizes that do not divide.
  BatchSource(const DataSource& data, int rank, int world_size, const TrainConfig& config);

  // Batches of a whole epoch: the same on all ranks.
  int64_t num_batches() const { return num_batches_; }

  // Epochs count from 0. An epoch that a loaded state is in the middle of goes on there.
  void begin_epoch(int64_t epoch);
  // False after the last. The batch is as the loader gave it.
  bool next(Batch& batch);
  // How many are still to come in the epoch that runs.
  int64_t batches_left() const;
  bool at_end() const { return batches_left() == 0; }
  // From now on the state is that of the beginning of this epoch, whatever is left of the
  // one before.
  void finish_epoch(int64_t next_epoch);

  // Where every loader stands, by name, and how many batches of the epoch are done; and
  // back, on any world size.
  std::map<std::string, SamplerState> state() const;
  int64_t batches_done() const { return position_; }
  void load_state(const std::map<std::string, SamplerState>& states, int64_t batches_done);

 private:
  struct Stream {
    std::string name;
    Loader loader;
    std::optional<Loader::Epoch> epoch = {};
    int64_t taken = 0;  // batches of `epoch`
  };
  void add(const std::string& name, const Loader& whole, const TrainConfig& config);

  const int rank_;
  const int world_size_;
  std::vector<Stream> streams_;
  bool named_ = false;
  bool endless_ = false;
  int64_t num_batches_ = 1;
  int64_t position_ = 0;  // batches of this epoch that were given
  bool resuming_ = false;
};

// What a loader gave, as the part of this name or, where loaders have no names, as the whole
// batch. Moves it out.
void add_part(Batch& batch, bool named, const std::string& name, Batch& part);

// The batch on the device, floating-point tensors in this dtype.
Batch to_device(const Batch& batch, c10::Device device, c10::ScalarType dtype);

// "float32[16, 1], int64[16]", for messages.
std::string describe(const Batch& batch);

// Brings batches to a rank's device. What goes to a GPU is copied on a stream of its own,
// beside the step that the GPU still computes: the stream that computes waits for the copy,
// and the host for neither where the memory is pinned. One thread at a time.
class DeviceCopy {
 public:
  DeviceCopy(c10::Device device, c10::ScalarType dtype);

  // The batch on the device, floating-point tensors in the dtype: for use on the stream that
  // is this thread's now. What is there already stays as it is.
  Batch operator()(const Batch& batch);

 private:
  void start(Batch& batch, const c10::Stream& user) const;

  const c10::Device device_;
  const c10::ScalarType dtype_;
  std::optional<c10::Stream> stream_;  // on GPUs
  std::optional<c10::Event> copied_;
};

}  // namespace lockstep::train
