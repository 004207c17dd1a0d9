#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "base/listen_socket.h"
#include "base/unique_fd.h"

namespace lockstep::launcher {

// A TCP port that nobody else gets by asking for a free one, while rank 0, which is
// told its number, can listen on it: the socket is bound but does not listen, and
// Linux lets a second one that also sets SO_REUSEADDR (as every store of PyTorch
// does) bind and listen beside it. A rank 0 of ours gets the socket itself instead.
class StorePort {
 public:
  // Throws ConfigError when no port is to be had.
  StorePort();
  // This very port. Throws ConfigError when somebody listens on it.
  explicit StorePort(uint16_t port);
  // A free port of this address, which listens and is to be inherited by rank 0.
  static StorePort to_hand_over(const std::string& address);

  uint16_t number() const { return number_; }
  // What rank 0 inherits, or -1.
  int heir_fd() const { return listens_ ? socket_.get() : -1; }
  // Rank 0 has it now: were it kept open here, a client of a dead rank 0 would wait in
  // our queue instead of being refused.
  void release() {
    if (listens_) socket_.reset();
  }

 private:
  explicit StorePort(base::ListenSocket socket)
      : socket_(std::move(socket.fd)), number_(socket.port), listens_(true) {}

  base::UniqueFd socket_;
  uint16_t number_ = 0;
  bool listens_ = false;
};

}  // namespace lockstep::launcher
