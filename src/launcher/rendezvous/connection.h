#pragma once

#include <sys/socket.h>

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/event_loop.h"
#include "base/job_token.h"
#include "base/unique_fd.h"
#include "launcher/rendezvous/message.h"
#include "launcher/rendezvous/options.h"

namespace lockstep::launcher {

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t length = 0;

  // "10.0.0.1:29400" or "[fe80::1]:29400".
  std::string to_string() const;
};

// Connects to a host by name or address. Tries all addresses of the name in turn, and again
// after a pause that grows up to a second. There is no reverse lookup, and name lookups do
// not block the loop. Used from the loop's thread.
class Connector {
 public:
  using Connected = std::function<void(base::UniqueFd)>;
  using UnknownHost = std::function<void(const std::string& reason)>;

  // unknown_host: called once, with the system's error text, when the host has been unknown for
  // base::kHostPatience; there are no more attempts after it.
  Connector(base::EventLoop& loop, std::string host, uint16_t port, Connected connected,
            UnknownHost unknown_host);
  Connector(const Connector&) = delete;
  Connector& operator=(const Connector&) = delete;
  ~Connector();

  // Returns at once; `connected` is called when there is a connected socket.
  void start();
  // The connection passed to `connected` was of no use, for this reason: connects again, after
  // a pause.
  void try_again(const std::string& reason);
  // There are no more callbacks.
  void stop();
  // Every address that was tried with its last error, for an error message:
  // "10.0.0.1:29400: Connection refused (3 times)".
  std::string tried() const;

 private:
  struct Lookup;

  void look_up();
  void looked_up();
  void try_next_address();
  void try_address(const SocketAddress& address);
  void connection_ready();
  void record_failure(const std::string& place, const std::string& reason);
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

// An unknown host, for a launcher on the machine `here` that got the system's error `reason`.
std::string describe_unknown_host(const RendezvousOptions& options, const std::string& here,
                                  const std::string& reason);

// One connection that carries messages. Used from the loop's thread.
class Channel {
 public:
  class Handler {
   public:
    virtual ~Handler() = default;
    // It may close the channel, but not destroy it.
    virtual void received(Channel& channel, wire::Message message) = 0;
    // The peer closed the connection, broke the protocol, or does not read. The last call; not
    // called after close(). It may not destroy the channel either.
    virtual void broken(Channel& channel, const std::string& reason) = 0;
  };

  // fd: a connected socket. handler outlives the channel.
  Channel(base::EventLoop& loop, base::UniqueFd fd, size_t max_bytes, Handler& handler);
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;
  ~Channel() { close(); }

  // Never blocks and never calls the handler; keeps the bytes that the socket does not take.
  // No effect on a closed channel.
  void send(const wire::Message& message);
  void send(std::shared_ptr<const std::string> frame);
  // Seals (encrypts and authenticates) every message from now on, in both directions.
  void seal(const base::MessageSeal& outgoing, const base::MessageSeal& incoming);
  // The limit for what is received from now on.
  void set_max_bytes(size_t max_bytes) { reader_.set_max_bytes(max_bytes); }
  // Ends the connection after what the socket has taken; drops the rest.
  void close();
  bool is_open() const { return static_cast<bool>(fd_); }

 private:
  void ready(uint32_t events);
  void receive();
  void dispatch();
  void flush();
  void fail(const std::string& reason);

  base::EventLoop& loop_;
  base::UniqueFd fd_;
  Handler& handler_;
  FrameReader reader_;
  std::optional<base::MessageSeal> outgoing_, incoming_;
  // Shared pointers: a thousand members get the same map.
  std::deque<std::shared_ptr<const std::string>> unsent_;
  size_t sent_of_first_ = 0;
  size_t unsent_bytes_ = 0;
  bool watches_output_ = false;
};

// Sets the options of a connection's socket: non-blocking, small messages leave at once, lost
// packets are sent again soon.
void prepare_socket(int fd);

}  // namespace lockstep::launcher
