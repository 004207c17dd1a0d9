#include "launch/rendezvous/channel.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

namespace lockstep::launcher {
namespace {

// A peer that lets more than this pile up does not read.
constexpr size_t kMaxUnsentBytes = 16 << 20;
constexpr size_t kReadBytes = 16 << 10;
constexpr unsigned kUserTimeoutMs = 30'000;

}  // namespace

void prepare_socket(int fd) {
  const int on = 1;
  ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  // A lost packet is sent again every 0.2 s, not after 0.2, 0.4, 0.8 s.
  ::setsockopt(fd, IPPROTO_TCP, TCP_THIN_LINEAR_TIMEOUTS, &on, sizeof on);
  // Pulses keep a member alive that TCP does not reach; not for ever.
  ::setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &kUserTimeoutMs, sizeof kUserTimeoutMs);
  ::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) | O_NONBLOCK);
}

Channel::Channel(base::EventLoop& loop, base::UniqueFd fd, size_t max_bytes, Handler& handler)
    : loop_(loop), fd_(std::move(fd)), handler_(handler), reader_(max_bytes) {
  prepare_socket(fd_.get());
  loop_.watch(fd_.get(), EPOLLIN, [this](uint32_t events) { ready(events); });
}

void Channel::send(const wire::Message& message) {
  send(std::make_shared<const std::string>(wire::encode(message)));
}

void Channel::send(std::shared_ptr<const std::string> frame) {
  if (!fd_) return;
  if (outgoing_) {
    const std::string_view body = std::string_view(*frame).substr(kFrameHeaderBytes);
    frame = std::make_shared<const std::string>(encode_frame(outgoing_->seal(body)));
  }
  unsent_bytes_ += frame->size();
  unsent_.push_back(std::move(frame));
  flush();
  // The other end of this socket is then seen as closed by receive().
  if (unsent_bytes_ > kMaxUnsentBytes) ::shutdown(fd_.get(), SHUT_RDWR);
}

void Channel::seal(const base::MessageSeal& outgoing, const base::MessageSeal& incoming) {
  outgoing_ = outgoing;
  incoming_ = incoming;
}

void Channel::flush() {
  while (!unsent_.empty()) {
    const std::string& frame = *unsent_.front();
    const ssize_t sent = ::send(fd_.get(), frame.data() + sent_of_first_, frame.size() - sent_of_first_,
                                MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0) {
      if (errno == EINTR) continue;
      // A broken connection is reported by receive(), after what the peer still said.
      if (errno != EAGAIN) unsent_.clear();
      break;
    }
    sent_of_first_ += static_cast<size_t>(sent);
    unsent_bytes_ -= static_cast<size_t>(sent);
    if (sent_of_first_ < frame.size()) break;
    unsent_.pop_front();
    sent_of_first_ = 0;
  }
  if (watches_output_ == unsent_.empty()) {
    watches_output_ = !unsent_.empty();
    loop_.change(fd_.get(), watches_output_ ? EPOLLIN | EPOLLOUT : EPOLLIN);
  }
}

void Channel::ready(uint32_t events) {
  if ((events & EPOLLOUT) != 0) flush();
  if ((events & ~static_cast<uint32_t>(EPOLLOUT)) != 0) receive();
}

void Channel::receive() {
  std::array<char, kReadBytes> bytes;
  const ssize_t count = ::recv(fd_.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
  if (count < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (count < 0) return fail(std::strerror(errno));
  if (count == 0) return fail("the peer closed the connection");
  reader_.feed({bytes.data(), static_cast<size_t>(count)});
  dispatch();
}

void Channel::dispatch() {
  try {
    while (fd_) {
      std::optional<std::string> body = reader_.next();
      if (!body) return;
      if (incoming_) body = incoming_->open(*body);
      if (!body) throw ProtocolError("a message that the other side did not send");
      handler_.received(*this, wire::decode(*body));
    }
  } catch (const ProtocolError& error) {
    fail(error.what());
  }
}

void Channel::fail(const std::string& reason) {
  close();
  handler_.broken(*this, reason);
}

void Channel::close() {
  if (!fd_) return;
  loop_.forget(fd_.get());
  // Without this, bytes that we did not read would turn the end of the connection
  // into a reset, which may take our last message with it.
  ::shutdown(fd_.get(), SHUT_WR);
  std::array<char, kReadBytes> rest;
  for (int i = 0; i < 16 && ::recv(fd_.get(), rest.data(), rest.size(), MSG_DONTWAIT) > 0; ++i) {
  }
  fd_.reset();
  unsent_.clear();
}

}  // namespace lockstep::launcher
