#include "comm/lifeline_server.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>

namespace lockstep::comm {
namespace {

// Strangers that connect and prove nothing; more than this many lose the oldest.
constexpr size_t kMaxStrangers = 64;

}  // namespace

Lifeline::Server::Server(base::UniqueFd listener, int size, const base::JobToken& token, Report report)
    : token_(token),
      listener_(std::move(listener)),
      size_(size),
      report_(std::move(report)),
      came_(static_cast<size_t>(size)),
      said_goodbye_(static_cast<size_t>(size)) {
  came_[0] = true;
}

void Lifeline::Server::serve(int wake_fd) {
  for (;;) {
    std::vector<pollfd> events{{wake_fd, POLLIN, 0}, {listener_.get(), POLLIN, 0}};
    for (const Connection& connection : connections_) {
      events.push_back(
          {connection->fd(), static_cast<short>(connection->has_unsent() ? POLLIN | POLLOUT : POLLIN), 0});
    }
    if (poll(events.data(), events.size(), -1) < 0) {
      continue;  // a signal
    }
    // From the last to the first, so that dropping one moves none that is to come.
    for (size_t i = connections_.size(); i-- > 0;) {
      const short happened = events[i + 2].revents;
      if ((happened & POLLOUT) != 0) {
        connections_[i]->flush();
      }
      if ((happened & ~POLLOUT) != 0 && !read_from(*connections_[i])) {
        drop(i);
      }
    }
    if (events[1].revents != 0) {
      accept_one();
    }
    if (listener_ && std::all_of(came_.begin(), came_.end(), [](bool came) { return came; })) {
      listener_.reset();
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
  const auto is_stranger = [](const Connection& connection) { return connection->rank() < 0; };
  if (static_cast<size_t>(std::count_if(connections_.begin(), connections_.end(), is_stranger)) >=
      kMaxStrangers) {
    connections_.erase(std::find_if(connections_.begin(), connections_.end(), is_stranger));
  }
  connections_.push_back(std::make_unique<SecurePeer>(std::move(fd), token_, Purpose::kLifeline, size_));
}

bool Lifeline::Server::read_from(SecurePeer& connection) {
  const bool was_stranger = connection.rank() < 0;
  const bool stays = connection.read();
  if (was_stranger && connection.rank() >= 0) {
    // A rank has one lifeline, and rank 0's is this one.
    if (connection.rank() == 0 || num_connections(connection.rank()) > 1) {
      return false;
    }
    welcome(connection);
  }
  // All that a rank ever says is goodbye.
  while (const std::optional<std::string> message = connection.next()) {
    const auto notice = decode_notice(*message);
    if (notice && notice->kind == NoticeKind::kLeft) {
      said_goodbye_[static_cast<size_t>(connection.rank())] = true;
      return false;
    }
  }
  return stays;
}

void Lifeline::Server::welcome(SecurePeer& connection) {
  came_[static_cast<size_t>(connection.rank())] = true;
  for (const Notice& departure : departures_) {
    connection.send(encode_notice(departure));
  }
}

int Lifeline::Server::num_connections(int rank) const {
  return static_cast<int>(
      std::count_if(connections_.begin(), connections_.end(),
                    [rank](const Connection& connection) { return connection->rank() == rank; }));
}

void Lifeline::Server::drop(size_t index) {
  const Connection gone = std::move(connections_[index]);
  connections_.erase(connections_.begin() + static_cast<ptrdiff_t>(index));
  const int rank = gone->rank();
  if (rank <= 0 || num_connections(rank) > 0) {
    return;  // a stranger, or a second connection of a rank that has one
  }
  const bool died = !said_goodbye_[static_cast<size_t>(rank)];
  const Notice departure{died ? NoticeKind::kDied : NoticeKind::kLeft, rank};
  departures_.push_back(departure);
  tell_all(departure);
  report_({rank, died});
}

void Lifeline::Server::tell_all(Notice notice) {
  const std::string message = encode_notice(notice);
  for (const Connection& connection : connections_) {
    // A failure shows as that connection's own end.
    connection->send(message);
  }
}

}  // namespace lockstep::comm
