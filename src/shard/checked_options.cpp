#include "shard/checked_options.h"

#include <fmt/format.h>
#include <lockstep/error.h>

#include <cmath>

namespace lockstep::shard {

namespace {

constexpr int64_t kDiskBlock = 4096;

template <typename Value>
void require(bool holds, const char* what, const Value& value) {
  if (!holds) throw ConfigError("shard", fmt::format("{}: {}", what, value));
}

void check_offload(const ShardedOptions& options) {
  const OffloadOptimizer& optimizer = options.offload_optimizer;
  const bool is_nvme = optimizer.device == OffloadDevice::kNvme;
  require(optimizer.device == OffloadDevice::kNone || options.stage > 0,
          "offload_optimizer needs stage 1, 2 or 3, and the stage is", options.stage);
  require(!is_nvme || options.stage == 3,
          "offload_optimizer to nvme needs stage 3; offload to cpu, as the stage is", options.stage);
  require(!is_nvme || !optimizer.nvme_path.empty(),
          "offload_optimizer to nvme needs nvme_path, a folder on the disk to use", "it is empty");
  require(optimizer.buffer_count >= 1, "offload_optimizer.buffer_count must be 1 or more",
          optimizer.buffer_count);
  require(options.aio.block_size > 0 && options.aio.block_size % kDiskBlock == 0,
          "aio.block_size must be a multiple of 4096", options.aio.block_size);
  require(options.aio.queue_depth >= 1 && options.aio.queue_depth <= 4096,
          "aio.queue_depth must be 1 to 4096", options.aio.queue_depth);
  const OffloadDevice param = options.offload_param.device;
  require(param != OffloadDevice::kNvme, "offload_param goes to host memory only: use cpu, not",
          name_of(param));
  require(param == OffloadDevice::kNone || options.stage == 3,
          "offload_param needs stage 3; set the stage, which is", options.stage);
  require(param == OffloadDevice::kNone || optimizer.device != OffloadDevice::kNone,
          "offload_param needs offload_optimizer, too; set its device, which is", name_of(optimizer.device));
}

}  // namespace

const char* name_of(OffloadDevice device) {
  switch (device) {
    case OffloadDevice::kCpu: return "cpu";
    case OffloadDevice::kNvme: return "nvme";
    default: return "none";
  }
}

ShardedOptions checked(ShardedOptions options) {
  require(options.stage >= 0 && options.stage <= 3, "the stage must be 0, 1, 2 or 3", options.stage);
  require(options.bucket_cap_bytes > 0, "bucket_cap_bytes must be positive", options.bucket_cap_bytes);
  require(options.persistence_threshold >= 0, "persistence_threshold must not be negative",
          options.persistence_threshold);
  require(options.gradient_predivide_factor > 0 && std::isfinite(options.gradient_predivide_factor),
          "gradient_predivide_factor must be positive", options.gradient_predivide_factor);
  require(!options.sum_gradients || options.gradient_predivide_factor == 1,
          "sum_gradients divides nothing: leave gradient_predivide_factor at 1",
          options.gradient_predivide_factor);
  check_offload(options);
  return options;
}

std::vector<grad::ModelFact> facts_of(const ShardedOptions& options) {
  return {{"option stage", std::to_string(options.stage)},
          {"option bucket_cap_bytes", std::to_string(options.bucket_cap_bytes)},
          {"option persistence_threshold", std::to_string(options.persistence_threshold)},
          {"option persistence_limit", std::to_string(options.persistence_limit)},
          {"option prefetch", std::to_string(options.prefetch ? options.prefetch_limit : 0)},
          {"option overlap", options.overlap ? "true" : "false"},
          {"option overlap_gather", options.overlap_gather ? "true" : "false"},
          {"option communication_dtype",
           options.communication_dtype ? c10::toString(*options.communication_dtype) : "unset"},
          {"options of the mean", fmt::format("{} {} {}", options.gradient_predivide_factor,
                                              options.divide_after_sum, options.sum_gradients)},
          {"option offload_optimizer", name_of(options.offload_optimizer.device)},
          {"option offload_param", name_of(options.offload_param.device)}};
}

}  // namespace lockstep::shard
