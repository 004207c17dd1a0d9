#pragma once

#include <cstdint>

#include "base/unique_fd.h"

namespace lockstep::launcher {

// A TCP port that nobody else gets by asking for a free one, while rank 0, which is
// told its number, can listen on it: the socket is bound but does not listen, and
// Linux lets a second one that also sets SO_REUSEADDR (as every store of PyTorch
// does) bind and listen beside it.
class StorePort {
 public:
  // Throws ConfigError when no port is to be had.
  StorePort();
  // This very port. Throws ConfigError when somebody listens on it.
  explicit StorePort(uint16_t port);

  uint16_t number() const { return number_; }

 private:
  base::UniqueFd socket_;
  uint16_t number_ = 0;
};

}  // namespace lockstep::launcher
