#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/job_token.h"
#include "launch/job.h"
#include "launch/rendezvous/roster.h"

// What a launcher and the coordinator say to each other. In this order:
//
//   coordinator                member
//   Challenge
//                              Hello          proves that it knows the token
//   Welcome                                   proves it too
//                              Join
//   Joined | Refused
//                              Heartbeat      answered by the same one
//   ReservePort                StorePort
//   Map, Begin                 WorkerFailed, Succeeded
//   Halt                       Stopped, Leave
//   Note, Stalled              Progress
//   Over
namespace lockstep::launcher::wire {

struct Challenge {
  base::Nonce nonce{};
};
struct Hello {
  base::Nonce nonce{};
  base::Proof proof{};
};
struct Welcome {
  base::Proof proof{};
};
struct Join {
  std::string run_id;
  // What the launcher was told of the whole job; all must have been told the same.
  int min_nodes = 1;
  int max_nodes = 1;
  int max_restarts = 0;
  std::chrono::milliseconds stall_timeout{0};
  Candidate candidate;
};
struct Joined {
  std::chrono::milliseconds heartbeat_interval{0};
  std::chrono::milliseconds heartbeat_timeout{0};
  MemberId pulse_id = 0;  // the member's name in pulses; 0: the coordinator takes none
};
struct Refused {
  std::string reason;
};
// The member's lease lasts heartbeat_timeout from when it sent the last one that was
// answered: however long messages travel, the coordinator knows when it is over.
struct Heartbeat {
  int64_t sequence = 0;
  int64_t time_us = 0;  // since the epoch, by the clock of whoever sends it
};
struct ReservePort {
  int generation = 0;
};
struct StorePort {
  int generation = 0;
  uint16_t port = 0;
  std::string error;
};
// The same bytes for all members of a generation; Begin says who the member is. The
// one message with something behind its JSON: the table of nodes.
struct Map {
  Generation generation;
};
struct Begin {
  int generation = 0;
  int node_rank = 0;
};
struct WorkerFailed {
  JobFailure failure;
};
struct Succeeded {
  int generation = 0;
};
struct Halt {
  int generation = 0;
  std::string reason;
};
struct Stopped {
  int generation = 0;
  std::string stuck;  // why the member's workers do not end; "": they have ended
};
struct Leave {
  int signal = 0;
};
// Of the member's workers, in the order of their local ranks; without rank and host.
struct Progress {
  int generation = 0;
  std::vector<RankView> workers;
};
struct Note {
  std::string text;
};
struct Stalled {
  int generation = 0;
  Stall stall;
};
struct Over {
  JobOutcome outcome;
};

using Message =
    std::variant<Challenge, Hello, Welcome, Join, Joined, Refused, Heartbeat, ReservePort, StorePort, Map,
                 Begin, WorkerFailed, Succeeded, Halt, Stopped, Leave, Progress, Note, Stalled, Over>;

// A whole frame. Texts are cut to what decode() takes and made valid UTF-8: the last
// lines of a worker may be anything.
std::string encode(const Message& message);

// Throws ProtocolError for everything but a whole message of the right types with
// values that make sense.
Message decode(std::string_view body);

}  // namespace lockstep::launcher::wire
