#include <fmt/format.h>
#include <lockstep/error.h>
#include <lockstep/trainer.h>
#include <torch/torch.h>

namespace lockstep {
namespace {

void check_scores(const char* name, const at::Tensor& scores, const at::Tensor& target) {
  if (scores.dim() == 2 && target.dim() == 1 && scores.size(0) == target.size(0)) return;
  throw ConfigError("train",
                    fmt::format("{} needs scores of [samples, classes] and as many targets: {} and {} "
                                "dimensions, {} and {} samples",
                                name, scores.dim(), target.dim(), scores.dim() > 0 ? scores.size(0) : 0,
                                target.dim() > 0 ? target.size(0) : 0));
}

// Sums of [3, classes]: true positives, predictions, targets.
double f1_of(const at::Tensor& sums, F1Average average) {
  const at::Tensor correct = sums[0];
  const at::Tensor either = sums[1] + sums[2];
  if (average == F1Average::kMicro) {
    const double all = either.sum().item<double>();
    return all > 0 ? 2 * correct.sum().item<double>() / all : 0;
  }
  const at::Tensor occurs = either > 0;
  if (!occurs.any().item<bool>()) return 0;
  return (2 * correct.masked_select(occurs) / either.masked_select(occurs)).mean().item<double>();
}

}  // namespace

at::Tensor top_k_accuracy(const at::Tensor& scores, const at::Tensor& target, int64_t k) {
  check_scores("top_k_accuracy", scores, target);
  if (k < 1 || k > scores.size(1)) {
    throw ConfigError("train", fmt::format("top_k_accuracy needs a k from 1 to the number of classes, {}: {}",
                                           scores.size(1), k));
  }
  const torch::NoGradGuard no_grad;
  const at::Tensor best = std::get<1>(scores.topk(k, /*dim=*/1));
  return best.eq(target.unsqueeze(1)).any(1).to(torch::kFloat32).mean();
}

MetricCounts f1_counts(const at::Tensor& scores, const at::Tensor& target, F1Average average) {
  check_scores("f1_counts", scores, target);
  const torch::NoGradGuard no_grad;
  const int64_t classes = scores.size(1);
  const at::Tensor predicted = torch::one_hot(scores.argmax(1), classes);
  const at::Tensor wanted = torch::one_hot(target, classes);
  return {torch::stack({(predicted * wanted).sum(0), predicted.sum(0), wanted.sum(0)}),
          [average](const at::Tensor& sums) { return f1_of(sums, average); }};
}

}  // namespace lockstep
