#pragma once

#include <cstdint>
#include <memory>

namespace lockstep::train {

// Counts the memory of CPU tensors that are made while it lives, on whatever thread. It
// stands in for the process's allocator meanwhile, so that there is one at a time. Tensors
// may outlive it.
class CountedMemory {
 public:
  CountedMemory();
  ~CountedMemory();
  CountedMemory(const CountedMemory&) = delete;
  CountedMemory& operator=(const CountedMemory&) = delete;

  // Of tensors that were made and are still there.
  int64_t live_bytes() const;
  // The most that there were at a time since the last reset_peak().
  int64_t peak_bytes() const;
  void reset_peak() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep::train
