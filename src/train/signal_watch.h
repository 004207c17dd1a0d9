#pragma once

#include <cstdint>
#include <vector>

namespace lockstep::train {

// Notes signals instead of being ended by them. Several may live at once (ranks that are
// threads of one process): each sees the signals that came during its life. The last one
// of a signal puts back what was there before the first. A second Ctrl-C, two seconds
// after the first, ends the process as ever. Thread-safe.
class SignalWatch {
 public:
  explicit SignalWatch(std::vector<int> signals);
  ~SignalWatch();
  SignalWatch(const SignalWatch&) = delete;
  SignalWatch& operator=(const SignalWatch&) = delete;

  // The process is about to end by itself: the signals end it no more, also when this is
  // gone.
  void keep_for_good() { kept_ = true; }

  // A signal that has come, 0 for none.
  int received() const;

 private:
  const std::vector<int> signals_;
  std::vector<uint32_t> counts_;  // of each at construction
  bool kept_ = false;
};

}  // namespace lockstep::train
