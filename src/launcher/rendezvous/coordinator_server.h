#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/event_loop.h"
#include "base/job_token.h"
#include "base/network.h"
#include "launcher/rendezvous/connection.h"
#include "launcher/rendezvous/coordinator.h"

namespace lockstep::launcher {

// The coordinator of a job behind a TCP port. Lives in one of the launchers, on its event loop
// and thread.
//
// A connection that does not prove within stranger_timeout that it knows the job's token, or
// that breaks the protocol, is dropped; the members do not notice it.
class CoordinatorServer {
 public:
  // needs_host: see Coordinator. Raises the soft limit of open files. ConfigError: the hard limit
  // is too low for max_nodes.
  CoordinatorServer(base::EventLoop& loop, base::ListenSocket listener, const RendezvousOptions& options,
                    bool needs_host = true);
  CoordinatorServer(const CoordinatorServer&) = delete;
  CoordinatorServer& operator=(const CoordinatorServer&) = delete;
  // Closes all connections: to members without an outcome the job is lost.
  ~CoordinatorServer();

  uint16_t port() const { return listener_.port; }

 private:
  struct Peer;
  using Time = Coordinator::Time;

  // Connections.
  void accept_some();
  void accept_one(base::UniqueFd fd, std::string address);
  void pause_accepting();
  void drop(MemberId id);
  bool make_room_for_stranger(int limit);
  void drop_oldest_stranger();
  void refuse(Peer& peer, const std::string& reason);

  // Messages.
  void received(Peer& peer, const wire::Message& message);
  void hello(Peer& peer, const wire::Hello& hello);
  void join(Peer& peer, const wire::Join& join);
  void from_member(Peer& peer, const wire::Message& message);
  void broken(Peer& peer, const std::string& reason);
  void lose(Peer& peer, const std::string& reason, Time when);
  void take_pulses();

  // Decisions.
  void perform_actions();
  void perform(const Refused& action);
  void perform(const Joined& action);
  void perform(const ReserveStorePort& action);
  void perform(const Start& action);
  void perform(const Stop& action);
  void perform(const Note& action);
  void perform(const Stalled& action);
  void perform(const Finish& action);
  Peer* find(MemberId id);

  // Time.
  void schedule_peer_check();
  void check_peers();
  void schedule_deadline();
  void let_host_finish();

  base::EventLoop& loop_;
  base::ListenSocket listener_;
  const base::UniqueFd pulse_socket_;  // may be empty
  const RendezvousOptions options_;
  const base::JobToken token_;
  Coordinator coordinator_;

  std::map<MemberId, std::unique_ptr<Peer>> peers_;
  std::set<MemberId> strangers_;  // the oldest first
  std::set<MemberId> leaving_;    // got the outcome; their connections are still open
  std::vector<std::unique_ptr<Peer>> dropped_;
  MemberId next_id_ = 1;
  int refusals_logged_ = 0;

  std::shared_ptr<const Generation> encoded_generation_;
  std::shared_ptr<const std::string> encoded_map_;
  // The Finish of the launcher that hosts this server. Sent when all others have the outcome:
  // its process, and with it this server, ends then.
  std::optional<Finish> finish_of_host_;

  Time next_peer_check_;
  base::EventLoop::Timer peer_check_timer_;
  base::EventLoop::Timer deadline_timer_;
  base::EventLoop::Timer accept_timer_;
  base::EventLoop::Timer cleanup_timer_;
};

}  // namespace lockstep::launcher
