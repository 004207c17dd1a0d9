#include "recipes/printed_lines.h"

#include <fmt/format.h>
#include <lockstep/launch.h>

#include <cmath>

namespace lockstep::recipes {
namespace {

double percent(int64_t part, int64_t whole) {
  return 100. * static_cast<double>(part) / static_cast<double>(whole);
}

// The shortest text that reads back as the same number, and never that of a whole one.
std::string python_float(double value) {
  std::string text = fmt::format("{}", value);
  return text.find_first_of(".en") == std::string::npos ? text + ".0" : text;
}

}  // namespace

int64_t correct_count(double accuracy, int64_t samples) {
  return std::llround(accuracy * static_cast<double>(samples));
}

std::string ddp_start_lines(const JobShape& shape) {
  std::string text = fmt::format("Number of allocated GPUs per node is {}.\n", shape.gpus_per_node);
  for (int rank = 0; rank < shape.processes; ++rank) {
    text += fmt::format("Running basic DDP example on rank {}.\n", rank);
  }
  return text + "group initialized? True";
}

std::string train_epoch_line(const TrainProgress& progress) {
  return fmt::format("Train Epoch: {} [{}/{} ({:.0f}%)]\tLoss: {:.6f}", progress.epoch, progress.seen,
                     progress.total, percent(progress.batch, progress.batches), progress.loss);
}

std::string test_set_line(double loss, int64_t correct, int64_t total) {
  return fmt::format("\nTest set: Average loss: {:.4f}, Accuracy: {}/{} ({:.0f}%)\n", loss, correct, total,
                     percent(correct, total));
}

std::string training_started_lines(const JobShape& shape) {
  return fmt::format("Training started with {} processes across {} nodes.\nUsing {} GPUs per node.",
                     shape.processes, shape.nodes, shape.gpus_per_node);
}

std::string epoch_completed_line(const EpochNumbers& numbers) {
  return fmt::format("Epoch {}/{} completed in {:.3f} seconds", numbers.epoch, numbers.epochs,
                     numbers.seconds);
}

std::string validation_line(double loss, double accuracy) {
  return fmt::format("Validation Loss: {:.4f}, Validation Accuracy: {:.4f}", loss, accuracy);
}

std::string epoch_throughput_line(const EpochNumbers& numbers) {
  return fmt::format("Epoch Throughput: {:.3f} images/second", numbers.images_per_s);
}

std::string early_stopping_line(int64_t epoch) {
  return fmt::format("Target accuracy reached. Early stopping after epoch {}.", epoch);
}

std::string training_summary_lines(const JobShape& shape, double seconds, double images_per_s) {
  return fmt::format(
      "\nTraining Summary:\nTotal training time: {:.3f} seconds\nThroughput: {:.3f} images/second\n"
      "Number of nodes: {}\nNumber of GPUs per node: {}\nTotal GPUs used: {}\n"
      "Training completed successfully.",
      seconds, images_per_s, shape.nodes, shape.gpus_per_node, shape.gpus);
}

std::string training_loss_line(int64_t epoch, double loss) {
  return fmt::format("Epoch {}, Training Loss: {}", epoch, python_float(loss));
}

std::string validation_accuracy_line(int64_t correct, int64_t total) {
  return fmt::format("Validation Accuracy: {}%", python_float(percent(correct, total)));
}

std::string time_elapsed_line(double seconds) {
  return fmt::format("Time elapsed (s): {}", python_float(seconds));
}

}  // namespace lockstep::recipes
