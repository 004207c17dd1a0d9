#include "recipes/printed_lines.h"

#include <fmt/format.h>

namespace lockstep::recipes {
namespace {

double percent(int64_t part, int64_t whole) {
  return 100. * static_cast<double>(part) / static_cast<double>(whole);
}

}  // namespace

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

}  // namespace lockstep::recipes
