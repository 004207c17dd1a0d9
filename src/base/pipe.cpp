#include "base/pipe.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <lockstep/error.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace lockstep::base {

Pipe make_pipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) {
    throw ConfigError("process", fmt::format("cannot make a pipe: {}", std::strerror(errno)));
  }
  return {UniqueFd(ends[0]), UniqueFd(ends[1])};
}

}  // namespace lockstep::base
