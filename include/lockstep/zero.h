#pragma once

// The options of ZeRO: what is sharded over the ranks (optimizer state, gradients, parameters), and
// what is offloaded to host memory or to a disk. The trainer (TrainConfig::zero) and ShardedModel
// (ShardedOptions::zero) take them.
//
// Example:
//
//   lockstep::TrainConfig sharded = config;
//   sharded.zero = {.stage = 2};
//   lockstep::Trainer(world, net, optimizer, sharded).fit(loader);
//
// More: docs/shard.md

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>

namespace lockstep {

// Where offload keeps tensors that the device does not need all the time.
enum class OffloadDevice { kNone, kCpu, kNvme };

// "none", "cpu" or "nvme", as in flags, TOML files and DeepSpeed's configuration.
const char* name_of(OffloadDevice device);
// nullopt: there is no device with this name.
std::optional<OffloadDevice> offload_device_named(std::string_view name);

// Stage 1 and above: keeps this rank's float32 masters and optimizer state outside of the device. The
// optimizer step then runs on the CPU, and gradients are copied to the host as they are reduced.
struct OffloadOptimizer {
  OffloadDevice device = OffloadDevice::kNone;  // nvme: only at stage 3
  // nvme: a folder on the disk. Each rank keeps one unnamed file in it, which disappears with the
  // process.
  std::string nvme_path = {};
  // Page-locked host memory, for faster copies to and from the device.
  bool pin_memory = true;
  // nvme: number of buckets whose state is in host memory at a time.
  int64_t buffer_count = 4;
  // nvme: while one bucket is computed, the next one is read and the last one is written.
  bool pipeline_read = true;
  bool pipeline_write = true;
};

// Stage 3: keeps parameters in host memory while no forward or backward uses them. The model may then
// be larger than the device.
struct OffloadParam {
  OffloadDevice device = OffloadDevice::kNone;  // none or cpu; cpu also needs offload_optimizer
  bool pin_memory = true;
};

// How the files of device nvme are read and written.
struct Aio {
  int64_t block_size = 1 << 20;  // bytes of a request, a multiple of 4096
  int64_t queue_depth = 8;       // number of concurrent requests
};

// What ZeRO shards over the ranks, and what it keeps in host memory or on a disk. A DeepSpeed
// configuration is converted to these options.
struct ZeroOptions {
  // What is sharded. Each stage includes the ones before it:
  //   0  nothing: every rank holds everything
  //   1  the optimizer's state, and the float32 masters of bf16 or fp16 parameters
  //   2  gradients
  //   3  parameters: those of modules inside Sharded<> are gathered only while the module runs
  int stage = 0;

  // Bytes after which a bucket is closed.
  int64_t bucket_cap_bytes = 25 << 20;
  // Stage 3: parameters with fewer elements stay replicated on every rank.
  int64_t persistence_threshold = 100'000;
  // Stage 3: upper bound of the elements that persistence_threshold replicates. Small parameters beyond
  // it are sharded.
  int64_t persistence_limit = std::numeric_limits<int64_t>::max();
  // Stage 3: gathers the next module while this one runs, if it has at most prefetch_limit elements.
  bool prefetch = true;
  int64_t prefetch_limit = std::numeric_limits<int64_t>::max();
  // true: full buckets are reduced while backward runs. false: all buckets are reduced at its end.
  bool overlap = true;
  // Stage 1 and above: the updates of modules inside Sharded<> are gathered while the next forward
  // runs, and each module waits for its own. Call ShardedModel::finish_step() or gather_parameters()
  // before anything else reads or writes these parameters. With the trainer, hooks and losses call
  // Trainer::gather_parameters(); callbacks, averages and plots need no call. Faster over NCCL and
  // Gloo, which transfer in the background. At stage 3 it applies to the replicated parameters.
  bool overlap_gather = false;

  OffloadOptimizer offload_optimizer = {};
  OffloadParam offload_param = {};
  Aio aio = {};
};

}  // namespace lockstep
