#pragma once

#include "base/unique_fd.h"

namespace lockstep::base {

struct Pipe {
  UniqueFd read_end;
  UniqueFd write_end;
};

// Neither end is inherited by a program that is executed. Throws ConfigError where
// there are no descriptors left.
Pipe make_pipe();

}  // namespace lockstep::base
