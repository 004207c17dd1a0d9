#pragma once

#include <sys/socket.h>

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/event_loop.h"
#include "base/unique_fd.h"

namespace lockstep::launcher {

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t length = 0;

  // "10.0.0.1:29400" or "[fe80::1]:29400".
  std::string to_string() const;
};

// Connects to a host by name or address. Tries all addresses that the name has, one
// after the other, and again after a pause that grows up to a second. Looks nothing
// up backwards, and looks names up without blocking the loop.
class Connector {
 public:
  using Connected = std::function<void(base::UniqueFd)>;
  using UnknownHost = std::function<void(const std::string& reason)>;

  // unknown_host: called once, when the host has not been known for base::kHostPatience. What the
  // system says of it; no more is tried.
  Connector(base::EventLoop& loop, std::string host, uint16_t port, Connected connected,
            UnknownHost unknown_host);
  Connector(const Connector&) = delete;
  Connector& operator=(const Connector&) = delete;
  ~Connector();

  // Calls back with a connected socket, some time.
  void start();
  // The connection that was given came to nothing: the next one, after a pause.
  void try_again(const std::string& reason);
  // No more calls.
  void stop();
  // Every address that was tried with what came of it, for an error message:
  // "10.0.0.1:29400: Connection refused (3 times)".
  std::string tried() const;

 private:
  struct Lookup;

  void look_up();
  void looked_up();
  void try_next_address();
  void try_address(const SocketAddress& address);
  void connection_ready();
  void note(const std::string& place, const std::string& reason);
  void pause();

  base::EventLoop& loop_;
  const std::string host_;
  const uint16_t port_;
  const Connected connected_;
  const UnknownHost unknown_host_;

  std::shared_ptr<Lookup> lookup_;
  std::vector<SocketAddress> addresses_;
  size_t next_ = 0;
  std::string current_;
  base::UniqueFd socket_;
  base::EventLoop::Timer timer_;
  std::chrono::milliseconds pause_{0};
  std::optional<base::EventLoop::Clock::time_point> unknown_since_;

  struct Attempt {
    std::string reason;
    int times = 0;
  };
  std::map<std::string, Attempt> attempts_;
};

}  // namespace lockstep::launcher
