#include "comm/lifeline_server.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>

namespace lockstep::comm {
namespace {

// Strangers that connect and say nothing; more than this many lose the oldest.
constexpr size_t kMaxStrangers = 64;

}  // namespace

Lifeline::Server::Server(base::UniqueFd listener, int size, const Nonce& nonce, Report report)
    : listener_(std::move(listener)), size_(size), nonce_(nonce), report_(std::move(report)) {}

void Lifeline::Server::serve(int wake_fd) {
  for (;;) {
    std::vector<pollfd> events{{wake_fd, POLLIN, 0}, {listener_.get(), POLLIN, 0}};
    for (const Connection& connection : connections_) {
      events.push_back({connection.fd.get(), POLLIN, 0});
    }
    if (poll(events.data(), events.size(), -1) < 0) {
      continue;  // a signal
    }
    // From the last to the first, so that dropping one moves none that is to come.
    for (size_t i = connections_.size(); i-- > 0;) {
      if (events[i + 2].revents != 0 && !read_from(connections_[i])) {
        drop(i);
      }
    }
    if (events[1].revents != 0) {
      accept_one();
    }
    if (events[0].revents != 0) {
      tell_all({NoticeKind::kLeft, 0});
      return;
    }
  }
}

void Lifeline::Server::accept_one() {
  base::UniqueFd fd(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!fd) {
    return;
  }
  keep_alive(fd.get());
  const auto is_stranger = [](const Connection& connection) { return connection.rank < 0; };
  if (static_cast<size_t>(std::count_if(connections_.begin(), connections_.end(), is_stranger)) >=
      kMaxStrangers) {
    connections_.erase(std::find_if(connections_.begin(), connections_.end(), is_stranger));
  }
  connections_.push_back({std::move(fd), -1, {}});
}

bool Lifeline::Server::read_from(Connection& connection) {
  uint8_t bytes[64];
  const ssize_t count = recv(connection.fd.get(), bytes, sizeof(bytes), 0);
  if (count < 0 && (errno == EAGAIN || errno == EINTR)) {
    return true;
  }
  if (count <= 0) {
    return false;
  }
  connection.received.insert(connection.received.end(), bytes, bytes + count);
  if (connection.rank < 0 && connection.received.size() >= kHelloBytes && !handle_hello(connection)) {
    return false;
  }
  if (connection.rank < 0) {
    return true;
  }
  // All that a rank ever says after its hello is goodbye.
  return connection.received.size() < kNoticeBytes;
}

bool Lifeline::Server::handle_hello(Connection& connection) {
  Hello hello;
  std::copy_n(connection.received.begin(), kHelloBytes, hello.begin());
  connection.received.erase(connection.received.begin(), connection.received.begin() + kHelloBytes);
  const auto rank = decode_hello(hello, nonce_);
  if (!rank || *rank <= 0 || *rank >= size_ || is_connected(*rank)) {
    return false;
  }
  connection.rank = *rank;
  const auto tell = [&connection](Notice notice) {
    const NoticeBytes bytes = encode_notice(notice);
    return send_whole(connection.fd.get(), bytes.data(), bytes.size());
  };
  return tell({NoticeKind::kWelcome, *rank}) && std::all_of(departures_.begin(), departures_.end(), tell);
}

bool Lifeline::Server::is_connected(int rank) const {
  return std::any_of(connections_.begin(), connections_.end(),
                     [rank](const Connection& connection) { return connection.rank == rank; });
}

void Lifeline::Server::drop(size_t index) {
  const Connection gone = std::move(connections_[index]);
  connections_.erase(connections_.begin() + static_cast<ptrdiff_t>(index));
  if (gone.rank < 0) {
    return;
  }
  bool died = true;
  if (gone.received.size() >= kNoticeBytes) {
    NoticeBytes bytes;
    std::copy_n(gone.received.begin(), kNoticeBytes, bytes.begin());
    const auto notice = decode_notice(bytes);
    died = !notice || notice->kind != NoticeKind::kLeft;
  }
  const Notice departure{died ? NoticeKind::kDied : NoticeKind::kLeft, gone.rank};
  departures_.push_back(departure);
  tell_all(departure);
  report_({gone.rank, died});
}

void Lifeline::Server::tell_all(Notice notice) {
  const NoticeBytes bytes = encode_notice(notice);
  for (const Connection& connection : connections_) {
    if (connection.rank >= 0) {
      // A failure shows as that connection's own end.
      send_whole(connection.fd.get(), bytes.data(), bytes.size());
    }
  }
}

}  // namespace lockstep::comm
