#include <lockstep/callbacks.h>
#include <lockstep/tracker_set.h>
#include <lockstep/trainer.h>
#include <lockstep/world.h>
#include <torch/torch.h>

#include "train/gradient_statistics.h"

namespace lockstep {

GradientMonitoring::GradientMonitoring(int64_t called_every, bool histograms)
    : Callback({.on = Stage::kTrainBatchEnd, .called_every = called_every}), histograms_(histograms) {}

void GradientMonitoring::run(Trainer& trainer) {
  const int64_t step = trainer.result().step;
  for (const GradientStatistics& gradient : trainer.gradient_statistics(histograms_)) {
    const std::string prefix = "gradients/" + gradient.name;
    const std::string names[] = {prefix + "/mean", prefix + "/std", prefix + "/max", prefix + "/min"};
    const Scalar scalars[] = {{names[0], gradient.mean},
                              {names[1], gradient.deviation},
                              {names[2], gradient.greatest},
                              {names[3], gradient.least}};
    trainer.trackers().write_scalars(scalars, step);
    if (!histograms_) continue;
    const at::Tensor& values = gradient.values;
    trainer.trackers().write_histogram(
        prefix, Histogram::of({values.const_data_ptr<double>(), static_cast<size_t>(values.numel())}), step);
  }
}

}  // namespace lockstep
