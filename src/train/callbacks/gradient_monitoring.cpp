#include <lockstep/callbacks.h>
#include <lockstep/tracker_set.h>
#include <lockstep/trainer.h>
#include <lockstep/world.h>
#include <torch/torch.h>

namespace lockstep {

GradientMonitoring::GradientMonitoring(int64_t called_every, bool histograms)
    : Callback({.on = Stage::kTrainBatchEnd, .called_every = called_every}), histograms_(histograms) {}

void GradientMonitoring::run(Trainer& trainer) {
  // Gradients are the same on all ranks by now.
  if (!trainer.world().is_main()) return;
  const int64_t step = trainer.result().step;
  for (const auto& parameter : trainer.model().module()->named_parameters()) {
    if (!parameter.value().grad().defined() || parameter.value().grad().numel() == 0) continue;
    const at::Tensor values = parameter.value().grad().detach().to(torch::kCPU, torch::kFloat64).flatten();
    const std::string prefix = "gradients/" + parameter.key();
    const std::string names[] = {prefix + "/mean", prefix + "/std", prefix + "/max", prefix + "/min"};
    const Scalar scalars[] = {{names[0], values.mean().item<double>()},
                              {names[1], values.std(/*unbiased=*/false).item<double>()},
                              {names[2], values.max().item<double>()},
                              {names[3], values.min().item<double>()}};
    trainer.trackers().write_scalars(scalars, step);
    if (histograms_) {
      trainer.trackers().write_histogram(
          prefix, Histogram::of({values.const_data_ptr<double>(), static_cast<size_t>(values.numel())}),
          step);
    }
  }
}

}  // namespace lockstep
