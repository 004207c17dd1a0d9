#include <fmt/format.h>
#include <lockstep/error.h>
#include <lockstep/trainer.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

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

// By the sum of the ranks of class 1 among all scores; equal scores share the mean of their ranks.
double auroc_of(const at::Tensor& rows) {
  std::vector<std::pair<double, bool>> samples;
  const at::Tensor numbers = rows.contiguous();
  const double* const first = numbers.const_data_ptr<double>();
  double positive = 0;
  for (int64_t i = 0; i < numbers.size(0); ++i) {
    if (std::isnan(first[2 * i])) return std::nan("");
    samples.emplace_back(first[2 * i], first[2 * i + 1] != 0);
    positive += samples.back().second ? 1 : 0;
  }
  const double negative = static_cast<double>(samples.size()) - positive;
  if (positive == 0 || negative == 0) return std::nan("");
  std::sort(samples.begin(), samples.end());
  double rank_sum = 0;
  for (size_t begin = 0, end = 0; begin < samples.size(); begin = end) {
    double equal_positive = 0;
    for (; end < samples.size() && samples[end].first == samples[begin].first; ++end) {
      equal_positive += samples[end].second ? 1 : 0;
    }
    rank_sum += equal_positive * static_cast<double>(begin + 1 + end) / 2;
  }
  return (rank_sum - positive * (positive + 1) / 2) / (positive * negative);
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

MetricCounts auroc_counts(const at::Tensor& scores, const at::Tensor& target) {
  if (scores.dim() != 1 || target.dim() != 1 || scores.size(0) != target.size(0)) {
    throw ConfigError("train", fmt::format("auroc_counts needs one score of class 1 and one target for each "
                                           "sample: {} and {} dimensions, {} and {} numbers",
                                           scores.dim(), target.dim(), scores.numel(), target.numel()));
  }
  const torch::NoGradGuard no_grad;
  return {torch::stack({scores.to(torch::kFloat64), target.to(torch::kFloat64)}, 1), auroc_of,
          /*appended=*/true};
}

}  // namespace lockstep
