#include "config/zero_options.h"

#include <fmt/format.h>

namespace lockstep {
namespace {

constexpr int64_t kDiskBlock = 4096;
constexpr int64_t kMaxQueueDepth = 4096;

}  // namespace

const char* name_of(OffloadDevice device) {
  switch (device) {
    case OffloadDevice::kCpu: return "cpu";
    case OffloadDevice::kNvme: return "nvme";
    case OffloadDevice::kNone: break;
  }
  return "none";
}

std::optional<OffloadDevice> offload_device_named(std::string_view name) {
  for (const OffloadDevice device : {OffloadDevice::kNone, OffloadDevice::kCpu, OffloadDevice::kNvme}) {
    if (name == name_of(device)) return device;
  }
  return std::nullopt;
}

std::optional<config::ZeroViolation> config::find_violation(const ZeroOptions& options,
                                                            const SpellZeroOption& spell) {
  std::optional<ZeroViolation> first;
  const auto require = [&](bool holds, const char* option, const auto& sentence, bool is_ours = false) {
    if (!holds && !first) first = {option, sentence(), is_ours};
  };
  const auto at_least = [&](int64_t minimum, const char* option, int64_t value) {
    require(value >= minimum, option,
            [&] { return fmt::format("{} must be at least {}: {}", spell(option), minimum, value); });
  };
  const std::string stage = spell("stage");
  require(options.stage >= 0 && options.stage <= 3, "stage",
          [&] { return fmt::format("{} must be 0, 1, 2 or 3: {}", stage, options.stage); });
  at_least(1, "bucket_cap_bytes", options.bucket_cap_bytes);
  at_least(0, "persistence_threshold", options.persistence_threshold);

  const std::string optimizer = spell("offload_optimizer.device");
  const OffloadDevice states = options.offload_optimizer.device;
  const bool is_nvme = states == OffloadDevice::kNvme;
  require(states == OffloadDevice::kNone || options.stage > 0, "offload_optimizer.device", [&] {
    return fmt::format("{} {} needs {} 1, 2 or 3, and it is {}: set {}, or {} to none", optimizer,
                       name_of(states), stage, options.stage, stage, optimizer);
  });
  require(!is_nvme || options.stage == 3, "offload_optimizer.device", [&] {
    return fmt::format("{} nvme needs {} 3, and it is {}: set {} to 3, or {} to cpu", optimizer, stage,
                       options.stage, stage, optimizer);
  });
  require(!is_nvme || !options.offload_optimizer.nvme_path.empty(), "offload_optimizer.nvme_path", [&] {
    return fmt::format("{} nvme needs {}, a folder on that disk: set it", optimizer,
                       spell("offload_optimizer.nvme_path"));
  });
  at_least(1, "offload_optimizer.buffer_count", options.offload_optimizer.buffer_count);

  const std::string param = spell("offload_param.device");
  const bool offloads_param = options.offload_param.device != OffloadDevice::kNone;
  require(options.offload_param.device != OffloadDevice::kNvme, "offload_param.device", [&] {
    return fmt::format("{} nvme is not supported, parameters are offloaded to host memory only: use cpu",
                       param);
  });
  require(!offloads_param || options.stage == 3, "offload_param.device", [&] {
    return fmt::format("{} cpu needs {} 3, and it is {}: set {} to 3, or {} to none", param, stage,
                       options.stage, stage, param);
  });

  // Rules of ours come last: none of them may hide one that a DeepSpeed file breaks.
  require(
      !offloads_param || states != OffloadDevice::kNone, "offload_param.device",
      [&] {
        return fmt::format("{} cpu needs {} too, and it is none: set it to cpu or nvme", param, optimizer);
      },
      /*is_ours=*/true);
  require(
      options.aio.block_size > 0 && options.aio.block_size % kDiskBlock == 0, "aio.block_size",
      [&] {
        return fmt::format("{} must be a multiple of {}: {}", spell("aio.block_size"), kDiskBlock,
                           options.aio.block_size);
      },
      /*is_ours=*/true);
  require(
      options.aio.queue_depth >= 1 && options.aio.queue_depth <= kMaxQueueDepth, "aio.queue_depth",
      [&] {
        return fmt::format("{} must be 1 to {}: {}", spell("aio.queue_depth"), kMaxQueueDepth,
                           options.aio.queue_depth);
      },
      /*is_ours=*/true);
  return first;
}

}  // namespace lockstep
