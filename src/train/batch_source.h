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

// This rank's training batches, epoch by epoch, from one loader, several loaders or none.
class BatchSource {
 public:
  // ConfigError: an epoch without batches, or batch sizes that do not divide.
  BatchSource(const DataSource& data, int rank, int world_size, const TrainConfig& config);

  // Batches of a complete epoch; the same on all ranks.
  int64_t num_batches() const { return num_batches_; }
  // Whether the number of batches is a choice, not that of the data: endless data, or none.
  bool is_endless() const { return endless_ || streams_.empty(); }

  // Epochs count from 0. If a loaded state is in the middle of this epoch, the epoch continues there.
  void begin_epoch(int64_t epoch);
  // False after the last batch. The batch is where the loader made it.
  bool next(Batch& batch);
  // Batches of the current epoch that are still to come.
  int64_t batches_left() const;
  bool at_end() const { return batches_left() == 0; }
  // The state becomes the beginning of epoch `next_epoch`, even if batches of the current epoch are
  // left.
  void finish_epoch(int64_t next_epoch);

  // The position of every loader, by name, and the number of finished batches of the epoch. They can be
  // loaded on any world size.
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
  int64_t position_ = 0;  // batches of this epoch that next() returned
  bool resuming_ = false;
};

// Moves a loader's batch into `batch`: as the part of this name, or as the complete batch if loaders
// have no names.
void add_part(Batch& batch, bool named, const std::string& name, Batch& part);

// The batch on the device, with floating-point tensors in this dtype.
Batch to_device(const Batch& batch, c10::Device device, c10::ScalarType dtype);

// "float32[16, 1], int64[16]", for messages.
std::string describe(const Batch& batch);

// Copies batches to a rank's device. Copies to a GPU run on a stream of their own, while the GPU still
// computes the previous step. The computing stream waits for the copy; the host waits for neither if
// the memory is pinned. One thread at a time.
class DeviceCopy {
 public:
  DeviceCopy(c10::Device device, c10::ScalarType dtype);

  // The batch on the device, with floating-point tensors in the dtype, for use on this thread's current
  // stream. Tensors that are already there are not copied.
  Batch operator()(const Batch& batch);

 private:
  void start(Batch& batch, const c10::Stream& user) const;

  const c10::Device device_;
  const c10::ScalarType dtype_;
  std::optional<c10::Stream> stream_;  // on GPUs
  std::optional<c10::Event> copied_;
};

}  // namespace lockstep::train
