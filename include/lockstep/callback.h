#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>

namespace lockstep {

class Trainer;

// Where a training is. Callbacks and hooks run at these points, in this order:
//
//   train_start
//     for each epoch:  train_epoch_start
//                        for each batch:  train_batch_start, train_batch_end
//                      train_epoch_end
//                      where validation is due:
//                        val_epoch_start, for each batch: val_batch_start, val_batch_end,
//                        val_epoch_end
//   train_end
//
// At every start the hook runs first, then the callbacks; at every end the callbacks,
// then the hook. Validation before the first epoch has its stages too.
enum class Stage {
  kIdle,
  kTrainStart,
  kTrainEnd,
  kTrainEpochStart,
  kTrainEpochEnd,
  kTrainBatchStart,
  kTrainBatchEnd,
  kValEpochStart,
  kValEpochEnd,
  kValBatchStart,
  kValBatchEnd,
  kTestBatchStart,
  kTestBatchEnd,
};

// "train_epoch_end".
const char* to_string(Stage stage);

// What is known of the training at a stage. Metrics are over all ranks and all samples:
// train_loss and train_NAME of the last epoch, val_loss and val_NAME of the last
// validation, test_... of the last test. At a batch stage loss is that of the batch on
// this rank, NaN where it has not been read from the device.
struct TrainResult {
  int64_t iteration = 0;  // epochs begun, from 1
  int64_t step = 0;       // steps of the optimizer
  // Batches of the running epoch that were done before it began here: 0, unless training
  // goes on in the middle of it.
  int64_t first_batch = 0;
  double loss = 0;
  std::map<std::string, double> metrics;
  int rank = 0;
  std::string device;
};

struct CallbackOptions {
  Stage on = Stage::kTrainEpochEnd;
  // Runs when the count divides by it: of batches at a batch stage, of epochs at the
  // others. 0: never. train_start and train_end run always.
  int64_t called_every = 1;
  // Runs only where this is true; empty: always.
  std::function<bool(const Trainer&)> condition = {};
  // Changes the result, for the callbacks after this one and for everything that is made
  // of it; runs before the callback itself.
  std::function<void(TrainResult&)> modify_result = {};
};

// Something that happens at a stage of training, on every rank: collectives are allowed
// and every rank then makes the same. A function, or a subclass that overrides run().
class Callback {
 public:
  // ConfigError: kIdle, a negative called_every.
  Callback(const CallbackOptions& options, std::function<void(Trainer&)> function);
  virtual ~Callback();
  Callback(const Callback&) = delete;
  Callback& operator=(const Callback&) = delete;

  Stage on() const { return options_.on; }
  int64_t called_every() const { return options_.called_every; }

  // What the trainer calls at stage on(): runs when it is due.
  void call(Trainer& trainer, int64_t count);

  // What must survive a restart, as text; kept in checkpoints under name(): rank 0's,
  // which all ranks get. Of two callbacks with one name the order in the configuration
  // tells them apart.
  virtual std::string name() const { return "callback"; }
  virtual std::string state() const { return {}; }
  virtual void load_state(const std::string& state) {}
  // Another training begins: forget the one before.
  virtual void reset() {}

 protected:
  explicit Callback(const CallbackOptions& options);
  virtual void run(Trainer& trainer);

 private:
  CallbackOptions options_;
  std::function<void(Trainer&)> function_;
};

}  // namespace lockstep
