#pragma once

#include <cstdint>
#include <vector>

namespace lockstep::train {

// Records signals, which then do not end the process. Several may exist at once (ranks that are threads
// of one process): each sees the signals since its construction. The last one for a signal restores the
// handler from before the first. A second Ctrl-C two seconds after the first ends the process as usual.
// Thread-safe.
class SignalWatch {
 public:
  explicit SignalWatch(std::vector<int> signals);
  ~SignalWatch();
  SignalWatch(const SignalWatch&) = delete;
  SignalWatch& operator=(const SignalWatch&) = delete;

  // For a process that is about to end by itself: the signals do not end it any more, also after this
  // object is destroyed.
  void keep_for_good() { kept_ = true; }

  // A signal that was received; 0: none.
  int received() const;

 private:
  const std::vector<int> signals_;
  std::vector<uint32_t> counts_;  // of each signal at construction
  bool kept_ = false;
};

}  // namespace lockstep::train
