#pragma once

#include <cstdint>
#include <string>

namespace lockstep {

// Where a ShardedModel keeps what no kernel of the device needs all the time. The names are
// those of DeepSpeed's configuration.

enum class OffloadDevice { kNone, kCpu, kNvme };

// This rank's float32 masters and its optimizer's state, from stage 1 on. The step runs on
// the CPU then, and gradients go there as they are reduced.
struct OffloadOptimizer {
  OffloadDevice device = OffloadDevice::kNone;  // nvme: stage 3 only
  // nvme: a folder. Each rank has one file in it, which has no name: it goes with the process.
  std::string nvme_path = {};
  // Host memory that copies to and from the device is page-locked.
  bool pin_memory = true;
  // nvme: buckets whose state is in host memory at a time.
  int64_t buffer_count = 4;
  // nvme: the next bucket is read, the last one written, while this one is computed.
  bool pipeline_read = true;
  bool pipeline_write = true;
};

// Stage 3: parameters outside of forward and backward.
struct OffloadParam {
  OffloadDevice device = OffloadDevice::kNone;  // none or cpu
  bool pin_memory = true;
};

// How files of device nvme are read and written.
struct Aio {
  int64_t block_size = 1 << 20;  // bytes of one request, a multiple of 4096
  int64_t queue_depth = 8;       // requests at a time
};

}  // namespace lockstep
