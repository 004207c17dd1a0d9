#pragma once

// What ZeRO shards over the ranks and what it offloads.
//
//   lockstep::TrainConfig config{.zero = {.stage = 3}};

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>

namespace lockstep {

// Where offload keeps what the device's kernels do not need all the time.
enum class OffloadDevice { kNone, kCpu, kNvme };

// "none", "cpu" or "nvme": the words of flags, of TOML and of DeepSpeed's configuration.
const char* name_of(OffloadDevice device);
// Nothing: no device has this name.
std::optional<OffloadDevice> offload_device_named(std::string_view name);

// This rank's float32 masters and its optimizer's state, from stage 1 on. The step then runs on
// the CPU, and gradients are copied there as they are reduced.
struct OffloadOptimizer {
  OffloadDevice device = OffloadDevice::kNone;  // nvme: stage 3 only
  // nvme: a folder on that disk. Each rank keeps one file in it, which has no name and vanishes with
  // the process.
  std::string nvme_path = {};
  // Host memory that is copied to and from the device is page-locked.
  bool pin_memory = true;
  // nvme: buckets whose state is in host memory at a time.
  int64_t buffer_count = 4;
  // nvme: the next bucket is read, the last one written, while this one is computed.
  bool pipeline_read = true;
  bool pipeline_write = true;
};

// Stage 3: parameters outside of forward and backward. The model stays in host memory, and may be
// larger than the device.
struct OffloadParam {
  OffloadDevice device = OffloadDevice::kNone;  // none or cpu; cpu needs offload_optimizer too
  bool pin_memory = true;
};

// How files of device nvme are read and written.
struct Aio {
  int64_t block_size = 1 << 20;  // bytes of one request, a multiple of 4096
  int64_t queue_depth = 8;       // requests at a time
};

// What ZeRO shards over the ranks, and what it keeps in host memory or on a disk. The trainer
// (TrainConfig::zero) and ShardedModel (ShardedOptions::zero) take the same options, and a DeepSpeed
// configuration is mapped to them.
struct ZeroOptions {
  // What is sharded, each stage with what the one before it shards:
  //   0  nothing: every rank holds all
  //   1  the optimizer's state, and float32 masters where parameters are bf16 or fp16
  //   2  gradients
  //   3  parameters: those of modules inside Sharded<> are gathered only while the module runs
  int stage = 0;

  // Bytes after which a bucket is closed.
  int64_t bucket_cap_bytes = 25 << 20;
  // Stage 3: parameters of fewer elements are kept whole on every rank.
  int64_t persistence_threshold = 100'000;
  // Stage 3: the most elements that are kept whole because their parameters are small. A small
  // parameter beyond this limit is sharded.
  int64_t persistence_limit = std::numeric_limits<int64_t>::max();
  // Stage 3: the next module is gathered while this one runs, if it has no more elements than
  // this.
  bool prefetch = true;
  int64_t prefetch_limit = std::numeric_limits<int64_t>::max();
  // Full buckets are reduced while backward runs; else all of them at its end.
  bool overlap = true;
  // From stage 1 on: updates of modules inside Sharded<> are gathered while the next forward runs,
  // and each module waits for its own. Until then nothing else may read or write its parameters:
  // call ShardedModel::finish_step() or gather_parameters() before; the trainer's hooks and losses use
  // Trainer::gather_parameters(), its callbacks, averages and plots need nothing. Pays over NCCL and
  // Gloo, which move data while nobody waits. At stage 3 it concerns the parameters that are kept whole.
  bool overlap_gather = false;

  OffloadOptimizer offload_optimizer = {};
  OffloadParam offload_param = {};
  Aio aio = {};
};

}  // namespace lockstep
