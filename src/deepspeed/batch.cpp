// The batch triple: train_batch_size = train_micro_batch_size_per_gpu x
// gradient_accumulation_steps x ranks.

#include <fmt/format.h>
#include <lockstep/deepspeed_config.h>

#include <algorithm>

#include "base/check.h"
#include "deepspeed/failure.h"

namespace lockstep {
namespace {

using BatchTriple = DeepSpeedConfig::BatchTriple;

constexpr const char* kTotal = "train_batch_size";
constexpr const char* kMicro = "train_micro_batch_size_per_gpu";
constexpr const char* kSteps = "gradient_accumulation_steps";

// "8", or where nothing whole fits, why: "no whole number: 30 / 4 = 7.5".
std::string quotient(int64_t a, int64_t b) {
  if (a % b == 0 && a >= b) return std::to_string(a / b);
  return fmt::format("no whole number ({} / {} = {:.4g})", a, b,
                     static_cast<double>(a) / static_cast<double>(b));
}

class BatchSum {
 public:
  BatchSum(const DeepSpeedConfig& config, int64_t world_size) : config_(config), world_(world_size) {}

  BatchTriple all_three(int64_t total, int64_t micro, int64_t steps) const {
    const int64_t product = times(times(micro, steps), world_);
    if (total == product) return {total, micro, steps};
    fail(kTotal,
         fmt::format("{} {} is not {} {} x {} {} x {} ranks = {}: set {} to {}, or {} to {}, or {} to {}",
                     kTotal, total, kMicro, micro, kSteps, steps, world_, product, kTotal, product, kMicro,
                     quotient(total, times(steps, world_)), kSteps, quotient(total, times(micro, world_))));
  }

  // The micro batch from the whole.
  BatchTriple split(int64_t total, int64_t steps) const {
    const int64_t parts = times(steps, world_);
    if (total < parts) fail_too_small(total, steps, parts);
    if (total % parts != 0) {
      fail(kTotal,
           fmt::format(
               "{} {} cannot be split over {}: {} / {} = {:.4g}: set {} to {} or {}, or give {} instead "
               "(the batch of one rank), or run on a number of ranks that divides it",
               kTotal, total, parts_text(steps), total, parts,
               static_cast<double>(total) / static_cast<double>(parts), kTotal, total / parts * parts,
               (total / parts + 1) * parts, kMicro));
    }
    return {total, total / parts, steps};
  }

  // The accumulation steps from the whole.
  BatchTriple accumulate(int64_t total, int64_t micro) const {
    const int64_t once = times(micro, world_);
    if (total < once || total % once != 0) {
      const int64_t lower = std::max<int64_t>(1, total / once) * once;
      fail(kTotal,
           fmt::format(
               "{} {} is no multiple of {} {} x {} ranks = {}: set {} to {}, or {} to {}, or leave one "
               "of the two out",
               kTotal, total, kMicro, micro, world_, once, kTotal, lower, kMicro, quotient(total, world_)));
    }
    return {total, micro, total / once};
  }

  BatchTriple multiply(int64_t micro, int64_t steps) const {
    return {times(times(micro, steps), world_), micro, steps};
  }

  [[noreturn]] void fail_nothing() const {
    const bool has_steps = config_.gradient_accumulation_steps.has_value();
    fail(kSteps,
         fmt::format("the configuration has no batch size{}: set {} (all ranks together) or {} (one rank)",
                     has_steps ? fmt::format(", and {} alone is none", kSteps) : "", kTotal, kMicro));
  }

 private:
  std::string parts_text(int64_t steps) const {
    return steps == 1 ? fmt::format("{} ranks", world_)
                      : fmt::format("{} ranks x {} {}", world_, steps, kSteps);
  }

  [[noreturn]] void fail_too_small(int64_t total, int64_t steps, int64_t parts) const {
    fail(kTotal,
         fmt::format(
             "{} {} is the batch of all ranks together, which is less than one sample for each of {}: set {} "
             "to a multiple of {}, or give {} instead (the batch of one rank), or run on at most {} ranks",
             kTotal, total, parts_text(steps), kTotal, parts, kMicro, std::max<int64_t>(1, total / steps)));
  }

  int64_t times(int64_t a, int64_t b) const {
    int64_t product = 0;
    if (__builtin_mul_overflow(a, b, &product)) {
      fail(kTotal, fmt::format("the batch is too large to count: {} x {}", a, b));
    }
    return product;
  }

  [[noreturn]] void fail(const char* key, const std::string& sentence) const {
    deepspeed::fail_at(config_, key, sentence);
  }

  const DeepSpeedConfig& config_;
  int64_t world_;
};

}  // namespace

BatchTriple DeepSpeedConfig::resolve_batch(int64_t world_size,
                                           std::optional<int64_t> loader_batch_size) const {
  base::check(world_size >= 1, "a world has a rank");
  const BatchSum sum(*this, world_size);
  const std::optional<int64_t>& total = train_batch_size;
  const std::optional<int64_t>& steps = gradient_accumulation_steps;
  std::optional<int64_t> micro = train_micro_batch_size_per_gpu;
  if (!total && !micro) micro = loader_batch_size;
  if (total && micro) return steps ? sum.all_three(*total, *micro, *steps) : sum.accumulate(*total, *micro);
  if (total) return sum.split(*total, steps.value_or(1));
  if (micro) return sum.multiply(*micro, steps.value_or(1));
  sum.fail_nothing();
}

}  // namespace lockstep
