#pragma once

// Metrics of classifiers, exact over batches and ranks. A metric that is a mean over samples is a scalar in
// LossResult::metrics. One that is not, such as F1, is counted: LossResult::counts adds up its counts over
// all batches and ranks, and the value is computed from the sums.
//
// Example:
//
//   const lockstep::Loss loss = [](const lockstep::Batch& batch, const lockstep::Model& model) {
//     const at::Tensor scores = model(batch.data());
//     lockstep::LossResult result = torch::nn::functional::cross_entropy(scores, batch.target());
//     result.metrics["top5"] = lockstep::top_k_accuracy(scores, batch.target(), 5);
//     result.counts["f1"] = lockstep::f1_counts(scores, batch.target());
//     return result;
//   };
//
// More: docs/trainer.md

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>

namespace lockstep {

// A metric that is computed from sums over all samples: its own counts of one batch, and the function from
// the sum of all counts to the value. The function runs on the host and gets float64.
struct MetricCounts {
  at::Tensor counts;  // numbers of any shape, the same in all batches
  std::function<double(const at::Tensor& sums)> value;
};

// The fraction of samples whose target is among the k highest scores: a scalar for LossResult::metrics.
// `scores` is [samples, classes], `target` has class indices. ConfigError: k is not from 1 to classes.
at::Tensor top_k_accuracy(const at::Tensor& scores, const at::Tensor& target, int64_t k);

// kMacro: the mean of the classes' F1, where a class that occurs neither in targets nor in predictions does
// not count. kMicro: F1 of all samples together.
enum class F1Average { kMacro, kMicro };

// F1 of the class with the highest score.
MetricCounts f1_counts(const at::Tensor& scores, const at::Tensor& target,
                       F1Average average = F1Average::kMacro);

}  // namespace lockstep
