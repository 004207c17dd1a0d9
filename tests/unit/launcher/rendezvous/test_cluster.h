#pragma once

// Launchers and a coordinator over real sockets, all on one event loop.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/error.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/event_loop.h"
#include "base/network.h"
#include "launcher/rendezvous/coordinator_server.h"
#include "launcher/rendezvous/join.h"

namespace lockstep::launcher::testing_cluster {

using std::chrono::milliseconds;
using std::chrono::seconds;

// Much longer than any test here takes: reached only by a test that fails.
inline constexpr seconds kPatience{30};

inline RendezvousOptions quick(int min_nodes, int max_nodes, int max_restarts = 0) {
  RendezvousOptions options;
  options.run_id = "job-7";
  options.token = "secret";
  options.min_nodes = min_nodes;
  options.max_nodes = max_nodes;
  options.max_restarts = max_restarts;
  options.last_call_timeout = milliseconds(20);
  options.heartbeat_interval = milliseconds(50);
  options.heartbeat_timeout = seconds(20);  // a busy machine must not count as dead
  options.lease_margin = milliseconds(50);
  options.unproven_patience = milliseconds(100);
  return options;
}

// For tests in which a peer falls silent.
inline RendezvousOptions with_short_lease(RendezvousOptions options) {
  options.heartbeat_timeout = milliseconds(1000);
  return options;
}

// Runs the loop until the condition holds. False: it never did.
inline bool run_until(base::EventLoop& loop, const std::function<bool()>& condition) {
  const auto end = base::EventLoop::Clock::now() + kPatience;
  while (!condition()) {
    if (base::EventLoop::Clock::now() > end) return false;
    loop.run_once(milliseconds(10));
  }
  return true;
}

inline NodeInfo node(const std::string& host, std::optional<int> rank = std::nullopt) {
  NodeInfo info;
  info.host = host;
  info.node_rank = rank;
  info.pid = 100;
  return info;
}

// A launcher whose workers run until the test or the job ends them.
struct Launcher : MembershipListener {
  uint16_t reserve_store_port(int generation) override {
    ++ports_reserved;
    if (!port_error.empty()) throw ConfigError("test", port_error);
    return static_cast<uint16_t>(20000 + generation);
  }
  void start(const Generation& generation) override {
    EXPECT_FALSE(outcome);
    EXPECT_FALSE(running);
    running = generation.number;
    map = generation;
  }
  void stop(int generation, const std::string& reason) override {
    EXPECT_EQ(running.value_or(generation), generation);
    running.reset();
    stop_reason = reason;
    membership->stopped(generation);
  }
  void note(const std::string& text) override { notes.push_back(text); }
  void stalled(int generation, const Stall& how) override {
    EXPECT_EQ(running, generation);
    stalls.push_back(how);
  }
  void finish(const JobOutcome& how) override {
    EXPECT_FALSE(outcome) << "finished twice";
    running.reset();
    outcome = how;
    if (membership_ends_with_job) membership.reset();
  }
  void fail(int code) const {
    JobFailure failure;
    failure.generation = *running;
    failure.state.code = code;
    failure.time_us = 1;
    failure.last_lines = {"a line", "\xff\xfe not text"};
    membership->worker_failed(failure);
  }

  std::unique_ptr<Membership> membership;
  std::optional<int> running;
  Generation map;
  std::string stop_reason, port_error;
  std::optional<JobOutcome> outcome;
  std::vector<Stall> stalls;
  std::vector<std::string> notes;
  int ports_reserved = 0;
  bool membership_ends_with_job = true;
};

// A coordinator and the launchers that join it.
struct Cluster {
  explicit Cluster(const RendezvousOptions& given) : options(given) {
    server.emplace(loop, base::listen_on("127.0.0.1", 0), options, /*needs_host=*/false);
    options.port = server->port();
  }
  Launcher& add(const std::string& host, std::optional<int> rank = std::nullopt) {
    return add(host, rank, options);
  }
  Launcher& add(const std::string& host, std::optional<int> rank, const RendezvousOptions& its_options) {
    launchers.push_back(std::make_unique<Launcher>());
    Launcher& launcher = *launchers.back();
    launcher.membership = join_remote(loop, node(host, rank), its_options, launcher);
    return launcher;
  }
  bool run_until(const std::function<bool()>& condition) {
    return testing_cluster::run_until(loop, condition);
  }
  bool all_run(int generation) {
    return run_until([&] {
      for (const auto& launcher : launchers) {
        if (!launcher->outcome && launcher->running != generation) return false;
      }
      return true;
    });
  }
  // Lets "b", node 1, join on its own loop until all run; then that loop stops, like a process
  // that got SIGSTOP.
  bool runs_with(Launcher& other, base::EventLoop& other_loop) {
    other.membership = join_remote(other_loop, node("b", 1), options, other);
    return run_until([&] {
      other_loop.run_once(milliseconds(0));
      for (const auto& launcher : launchers) {
        if (launcher->running != 0) return false;
      }
      return other.running == 0;
    });
  }
  bool all_finish() {
    return run_until([&] {
      for (const auto& launcher : launchers) {
        if (!launcher->outcome) return false;
      }
      return true;
    });
  }

  base::EventLoop loop;
  RendezvousOptions options;
  std::optional<CoordinatorServer> server;
  std::vector<std::unique_ptr<Launcher>> launchers;
};

// One launcher, "a", and at its port the peer that a test provides.
struct Single {
  void join(RendezvousOptions options, uint16_t port) {
    options.port = port;
    launcher.membership = join_remote(loop, node("a"), options, launcher);
  }
  bool run_until(const std::function<bool()>& condition) {
    return testing_cluster::run_until(loop, condition);
  }
  bool finishes() {
    return run_until([&] { return launcher.outcome.has_value(); });
  }

  base::EventLoop loop;
  Launcher launcher;
};

// A port of this machine on which no process listens.
inline uint16_t closed_port() { return base::listen_on("127.0.0.1", 0).port; }

// A hand-made coordinator: knows the token, accepts one launcher and sends what the test wants.
struct ByHand : Channel::Handler {
  using Heard = std::function<void(Channel& channel, const wire::Message& message)>;

  // Between the launcher's connect() and its first message.
  void accept(base::EventLoop& loop, Heard heard) {
    on_message = std::move(heard);
    base::UniqueFd fd(::accept(socket.fd.get(), nullptr, nullptr));
    channel = std::make_unique<Channel>(loop, std::move(fd), kMaxMemberBytes, *this);
    channel->send(wire::Challenge{nonce});
  }
  void received(Channel& from, wire::Message message) override {
    if (const auto* hello = std::get_if<wire::Hello>(&message)) {
      its_nonce = hello->nonce;
      from.send(wire::Welcome{token.prove(base::JobToken::Side::kCoordinator, nonce, its_nonce)});
      from.seal(token.seal(base::JobToken::Side::kCoordinator, nonce, its_nonce),
                token.seal(base::JobToken::Side::kMember, nonce, its_nonce));
    } else {
      on_message(from, message);
    }
  }
  void broken(Channel&, const std::string&) override {}

  const base::ListenSocket socket = base::listen_on("127.0.0.1", 0);
  const base::JobToken token{"secret"};
  const base::Nonce nonce = base::make_nonce();
  base::Nonce its_nonce{};
  Heard on_message;
  std::unique_ptr<Channel> channel;
};

// A peer that sends any bytes.
struct Stranger {
  explicit Stranger(uint16_t port) : fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(::connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  }
  void say(const std::string& bytes) const {
    ::send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  }
  // Whether the other side has closed the connection; reads its last bytes first.
  bool is_cut_off() {
    char bytes[4096];
    ssize_t count = 0;
    while ((count = ::recv(fd.get(), bytes, sizeof bytes, MSG_DONTWAIT)) > 0) {
      heard.append(bytes, static_cast<size_t>(count));
    }
    return count == 0 || (errno != EAGAIN && errno != EWOULDBLOCK);
  }
  base::UniqueFd fd;
  std::string heard;
};

}  // namespace lockstep::launcher::testing_cluster
