#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/event_loop.h"
#include "base/job_token.h"
#include "base/listen_socket.h"
#include "launch/rendezvous/channel.h"
#include "launch/rendezvous/coordinator.h"

namespace lockstep::launcher {

// The coordinator of a job behind a TCP port. Lives in one of the launchers, on its
// event loop and thread.
//
// Who does not prove within stranger_timeout that it knows the job's token, or sends
// anything else than the protocol, is dropped and has cost the others nothing.
class CoordinatorServer {
 public:
  // needs_host: see Coordinator. Raises the soft limit of open files; ConfigError when the hard
  // limit is too low for max_nodes.
  CoordinatorServer(base::EventLoop& loop, base::ListenSocket listener, const RendezvousOptions& options,
                    bool needs_host = true);
  CoordinatorServer(const CoordinatorServer&) = delete;
  CoordinatorServer& operator=(const CoordinatorServer&) = delete;
  // Ends all connections: members that have not been told the outcome see a lost job.
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
  void perform(const Refuse& action);
  void perform(const Admit& action);
  void perform(const ReserveStorePort& action);
  void perform(const Start& action);
  void perform(const Stop& action);
  void perform(const Tell& action);
  void perform(const TellStall& action);
  void perform(const Finish& action);
  Peer* find(MemberId id);

  // Time.
  void schedule_look();
  void look_around();
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
  std::set<MemberId> leaving_;    // were told the outcome and may close the connection
  std::vector<std::unique_ptr<Peer>> dropped_;
  MemberId next_id_ = 1;
  int complaints_ = 0;

  std::shared_ptr<const Generation> encoded_generation_;
  std::shared_ptr<const std::string> encoded_map_;
  // Its process ends with it, and the server too: told when all others know.
  std::optional<Finish> finish_of_host_;

  Time next_look_;
  base::EventLoop::Timer look_timer_;
  base::EventLoop::Timer deadline_timer_;
  base::EventLoop::Timer accept_timer_;
  base::EventLoop::Timer cleanup_timer_;
};

}  // namespace lockstep::launcher
