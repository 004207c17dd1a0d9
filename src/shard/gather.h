#pragma once

#include <lockstep/communicator.h>

#include "shard/copy_lane.h"

namespace lockstep::shard {

// A running gather of parameters.
struct Gather {
  Work work = {};
  CopyLane::Mark copy = {};
  // The current stream, or this thread on a CPU, waits.
  void wait() {
    work.wait();
    copy.wait_on_device();
  }
};

}  // namespace lockstep::shard
