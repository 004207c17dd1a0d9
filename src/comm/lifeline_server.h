#pragma once

#include <functional>
#include <vector>

#include "base/unique_fd.h"
#include "comm/lifeline.h"
#include "comm/lifeline_wire.h"

namespace lockstep::comm {

// Rank 0's end of the lifelines. Used by the lifeline's thread alone.
class Lifeline::Server {
 public:
  using Report = std::function<void(Departure)>;

  // `report` is told of every departure, after the other ranks were.
  Server(base::UniqueFd listener, int size, const Nonce& nonce, Report report);

  // Serves until `wake_fd` becomes readable, then says rank 0's goodbye.
  void serve(int wake_fd);

 private:
  struct Connection {
    base::UniqueFd fd;
    int rank = -1;  // unknown until the hello is complete
    std::vector<uint8_t> received;
  };

  void accept_one();
  // False: the connection is over.
  bool read_from(Connection& connection);
  bool handle_hello(Connection& connection);
  bool is_connected(int rank) const;
  void tell_all(Notice notice);
  void drop(size_t index);

  const base::UniqueFd listener_;
  const int size_;
  const Nonce nonce_;
  const Report report_;
  std::vector<Connection> connections_;
  std::vector<Notice> departures_;  // for ranks that come later
};

}  // namespace lockstep::comm
