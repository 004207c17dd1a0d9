#pragma once

#include <cstdint>
#include <string>

namespace lockstep {
struct JobShape;
}

namespace lockstep::recipes {

// The lines of the pages that the recipes come from, character by character, so that what
// reads their output reads ours. No line ends with a line's end.

// The number of right answers behind an accuracy. A mean of whole numbers: rounding gives
// back the count itself.
int64_t correct_count(double accuracy, int64_t samples);

// Princeton, before the training: 'Number of allocated GPUs per node is {}.', 'Running basic DDP example on
// rank
// {}.' for each rank, 'group initialized? True'.
std::string ddp_start_lines(const JobShape& shape);

// Princeton: 'Train Epoch: {} [{}/{} ({:.0f}%)]\tLoss: {:.6f}'.
struct TrainProgress {
  int64_t epoch = 1;
  int64_t seen = 0;     // samples of all ranks before this batch
  int64_t total = 0;    // samples of the data set
  int64_t batch = 0;    // from 0
  int64_t batches = 1;  // of an epoch
  double loss = 0;
};
std::string train_epoch_line(const TrainProgress& progress);

// Princeton: '\nTest set: Average loss: {:.4f}, Accuracy: {}/{} ({:.0f}%)\n'.
std::string test_set_line(double loss, int64_t correct, int64_t total);

// Sigma2.
std::string training_started_lines(const JobShape& shape);

struct EpochNumbers {
  int64_t epoch = 1;
  int64_t epochs = 1;
  double seconds = 0;
  double images_per_s = 0;
};
std::string epoch_completed_line(const EpochNumbers& numbers);
std::string validation_line(double loss, double accuracy);
std::string epoch_throughput_line(const EpochNumbers& numbers);
std::string early_stopping_line(int64_t epoch);
// Begins with an empty line.
std::string training_summary_lines(const JobShape& shape, double seconds, double images_per_s);

// LUMI: numbers as Python prints a float.
std::string training_loss_line(int64_t epoch, double loss);
std::string validation_accuracy_line(int64_t correct, int64_t total);
std::string time_elapsed_line(double seconds);

}  // namespace lockstep::recipes
