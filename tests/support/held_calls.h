#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace lockstep::test {

// System calls of a process, and of all that it starts, which wait until the test lets them go on:
// a file system that takes its time. The calls are real, and so are the processes that wait in
// them.
class HeldCalls {
 public:
  // start: starts the process, on a thread of its own; what it starts is supervised. Of the calls
  // with these numbers (execve, mkdir, mkdirat, openat) those whose path contains `path` are held.
  HeldCalls(const std::vector<int>& numbers, std::string path, const std::function<void()>& start);
  HeldCalls(const HeldCalls&) = delete;
  HeldCalls& operator=(const HeldCalls&) = delete;
  // Lets go of all.
  ~HeldCalls();

  // Until that many calls are held.
  void wait_for(int count);
  // All calls go on, those that wait and those that come.
  void release();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep::test
