#include "train/search_step.h"

#include <lockstep/error.h>
#include <lockstep/launch.h>
#include <lockstep/search.h>
#include <torch/torch.h>

#include <limits>

#include "checkpoint/reader.h"
#include "checkpoint/snapshot.h"
#include "parallel/parallel_model.h"
#include "train/metric_sums.h"

namespace lockstep::train {
namespace {

constexpr auto kSection = "gradient_free";  // of a checkpoint

}  // namespace

LossResult SearchStep::run(StepBatches& batches) {
  clock().enter(base::Phase::kForward);
  const torch::NoGradGuard no_grad;
  const std::vector<Batch> all = batches.all_on_device();  // every candidate uses them
  torch::nn::Module& module = *parts_.model.module();
  const auto loss_of = [&](const at::Tensor& point) {
    set_parameters(module, point);
    double total = 0;
    int64_t samples = 0;
    for (const Batch& batch : all) {
      total += scalar_value(forward(batch).loss) * static_cast<double>(batch.size());
      samples += batch.size();
    }
    return total / static_cast<double>(samples);
  };
  const at::Tensor losses =
      evaluate_over_ranks(optimizer_, optimizer_.population(), loss_of, world().communicator());
  set_parameters(module, optimizer_.best());
  constexpr double kWorst = std::numeric_limits<double>::infinity();
  return losses.nan_to_num(kWorst, kWorst).min();
}

void SearchStep::check_fit(int64_t) const {
  if (config().ema_decay == 0) return;
  throw ConfigError(
      "train", "ema_decay averages what gradients make of the weights, and a search has none: set it to 0");
}

void SearchStep::add_to(checkpoint::Snapshot& snapshot) const {
  parallel().add_weights_to(snapshot);
  if (world().is_main()) parallel::add_section(snapshot, kSection, optimizer_.state());
}

void SearchStep::restore_rest(const checkpoint::Reader& reader) {
  optimizer_.load_state(parallel::read_section(reader, kSection));
}

}  // namespace lockstep::train
