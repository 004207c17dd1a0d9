#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "base/mutex.h"

namespace lockstep::nn {

// Whether cuDNN's attention is faster than LibTorch's own on a device of this compute capability: on Hopper,
// as measured. Later ones are assumed to be like it. Not of a cuDNN before 9.15.1 (91501), which is wrong for
// some lengths of sequences (pytorch#169849).
bool prefers_cudnn(int capability, int64_t cudnn_version);

// While it lives, cuDNN is the first choice of LibTorch's attention, if this device prefers it. The order is
// LibTorch's global state: a second guard waits for the end of the first, so a thread has at most one.
class CudnnFirst {
 public:
  explicit CudnnFirst(const c10::Device& device);
  ~CudnnFirst();
  CudnnFirst(const CudnnFirst&) = delete;
  CudnnFirst& operator=(const CudnnFirst&) = delete;

 private:
  std::optional<base::MutexLock> lock_;  // empty: the order stays
  std::vector<int64_t> before_;
};

}  // namespace lockstep::nn
