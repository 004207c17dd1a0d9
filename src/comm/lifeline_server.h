#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "base/unique_fd.h"
#include "comm/lifeline.h"
#include "comm/lifeline_wire.h"
#include "comm/secure_connection.h"

namespace lockstep::comm {

// Rank 0's end of the lifelines. Used by the lifeline's thread alone.
class Lifeline::Server {
 public:
  using Report = std::function<void(Departure)>;

  // `report` is told of every departure, after the other ranks were.
  Server(base::UniqueFd listener, int size, const base::JobToken& token, Report report);

  // Serves until `wake_fd` becomes readable, then says rank 0's goodbye.
  void serve(int wake_fd);

 private:
  using Connection = std::unique_ptr<SecurePeer>;

  void accept_one();
  // False: the connection is over.
  bool read_from(SecurePeer& connection);
  void welcome(SecurePeer& connection);
  int num_connections(int rank) const;
  void tell_all(Notice notice);
  void drop(size_t index);

  const base::JobToken token_;
  base::UniqueFd listener_;  // closed once all ranks have come
  const int size_;
  const Report report_;
  std::vector<Connection> connections_;
  std::vector<Notice> departures_;  // for ranks that come later
  std::vector<bool> came_;
  std::vector<bool> said_goodbye_;
};

}  // namespace lockstep::comm
