#pragma once

#include <memory>
#include <string>

#include "base/event_loop.h"
#include "base/process.h"
#include "launch/agent/console.h"
#include "launch/agent/worker_stream.h"

namespace lockstep::launcher {

// Shows where the threads of a process are, by gdb, while the loop goes on. Whoever
// cannot be looked into (no gdb, no permission) is passed over in silence: it is a
// hint, not a duty.
class StackDump {
 public:
  // prefix: before each line.
  StackDump(base::EventLoop& loop, Console& console, pid_t pid, const std::string& prefix);
  StackDump(const StackDump&) = delete;
  StackDump& operator=(const StackDump&) = delete;
  // Ends gdb if it still runs.
  ~StackDump();

 private:
  void finish();

  base::EventLoop& loop_;
  std::unique_ptr<WorkerStream> lines_;
  std::unique_ptr<base::ChildProcess> gdb_;
  base::EventLoop::Timer limit_;
};

}  // namespace lockstep::launcher
