#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "base/event_loop.h"
#include "base/job_token.h"
#include "base/unique_fd.h"
#include "launch/rendezvous/frame.h"
#include "launch/rendezvous/message.h"

namespace lockstep::launcher {

// One connection that carries messages. Used from the loop's thread.
class Channel {
 public:
  class Handler {
   public:
    virtual ~Handler() = default;
    // May close the channel, but not destroy it.
    virtual void received(Channel& channel, wire::Message message) = 0;
    // The peer closed it, broke the protocol, or does not read: nothing comes any
    // more. Not called after close(). May not destroy the channel either.
    virtual void broken(Channel& channel, const std::string& reason) = 0;
  };

  // fd: a connected socket. handler outlives the channel.
  Channel(base::EventLoop& loop, base::UniqueFd fd, size_t max_bytes, Handler& handler);
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;
  ~Channel() { close(); }

  // Never blocks and never calls the handler; what the socket does not take is kept.
  // Nothing happens on a closed channel.
  void send(const wire::Message& message);
  void send(std::shared_ptr<const std::string> frame);
  // From now on every message is sealed, in both directions.
  void seal(const base::MessageSeal& outgoing, const base::MessageSeal& incoming);
  // The limit for what is received from now on.
  void set_max_bytes(size_t max_bytes) { reader_.set_max_bytes(max_bytes); }
  // Sends what is there if the socket takes it, and ends the connection.
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
  // Shared: a thousand members get the same map.
  std::deque<std::shared_ptr<const std::string>> unsent_;
  size_t sent_of_first_ = 0;
  size_t unsent_bytes_ = 0;
  bool watches_output_ = false;
};

// Small messages leave at once; never blocks.
void prepare_socket(int fd);

}  // namespace lockstep::launcher
