#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/job_token.h"
#include "launcher/job.h"
#include "launcher/rendezvous/roster.h"
#include "launcher/stall.h"

// The rendezvous protocol: what travels between a launcher and the coordinator.
namespace lockstep::launcher {

// --- Frames ---
//
//   "LSR" version   4 bytes
//   length          4 bytes, big-endian, of the body
//   body            a JSON object on one line, see below; once both sides have proven that
//                   they know the job's token: encrypted and authenticated, see
//                   base/job_token.h
inline constexpr uint8_t kWireVersion = 3;
inline constexpr size_t kFrameHeaderBytes = 8;

// Hard limits of a body: from a stranger, from a member, and from the coordinator, whose
// map of 4 000 nodes is the largest message.
inline constexpr size_t kMaxStrangerBytes = 4 << 10;
inline constexpr size_t kMaxMemberBytes = 256 << 10;
inline constexpr size_t kMaxCoordinatorBytes = 2 << 20;

// The peer broke the protocol; its connection is closed. The text describes the violation.
class ProtocolError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

std::string encode_frame(std::string_view body);

// Cuts a stream of bytes into bodies. Holds at most one frame and what came with it.
class FrameReader {
 public:
  explicit FrameReader(size_t max_bytes) : max_bytes_(max_bytes) {}

  void set_max_bytes(size_t max_bytes) { max_bytes_ = max_bytes; }
  void feed(std::string_view bytes);
  // The next whole body. Throws ProtocolError as soon as the bytes cannot become a frame of
  // this protocol; do not call it again after that.
  std::optional<std::string> next();

 private:
  size_t max_bytes_;
  std::string buffer_;
  size_t begin_ = 0;  // of the bytes that were not returned yet
};

// --- Messages ---
//
// In this order:
//
//   coordinator                member
//   Challenge
//                              Hello          proves that it knows the token
//   Welcome                                   proves it too
//                              Join
//   Joined | Refused
//                              Heartbeat      answered by a Heartbeat
//   ReserveStorePort           StorePort
//   GenerationMap, Start       WorkerFailed, Succeeded
//   Stop                       Stopped, Leave
//   Note, Stalled              Progress
//   Finish
//
// What the coordinator sends has the same name as its Action (coordinator.h) and as the
// call of the MembershipListener. The field "type" of the JSON object is the name in snake
// case.
namespace wire {

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
  // The launcher's flags for the whole job; they must be the same on all launchers.
  int min_nodes = 1;
  int max_nodes = 1;
  int max_restarts = 0;
  std::chrono::milliseconds stall_timeout{0};
  Candidate candidate;
};
struct Joined {
  std::chrono::milliseconds heartbeat_interval{0};
  std::chrono::milliseconds heartbeat_timeout{0};
  MemberId pulse_id = 0;  // the member's id in pulses; 0: the coordinator takes no pulses
};
struct Refused {
  std::string reason;
};
// The member's lease lasts heartbeat_timeout from the moment when it sent the last heartbeat
// that was answered: however long messages travel, the coordinator knows when it has ended.
struct Heartbeat {
  int64_t sequence = 0;
  int64_t time_us = 0;  // since the epoch, by the sender's clock
};
struct ReserveStorePort {
  int generation = 0;
};
struct StorePort {
  int generation = 0;
  uint16_t port = 0;
  std::string error;
};
// The same bytes for all members of a generation; the Start that follows adds the member's
// own node rank. The only message with something after its JSON: the table of nodes.
struct GenerationMap {
  Generation generation;
};
struct Start {
  int generation = 0;
  int node_rank = 0;
};
struct WorkerFailed {
  JobFailure failure;
};
struct Succeeded {
  int generation = 0;
};
struct Stop {
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
struct Finish {
  JobOutcome outcome;
};

using Message = std::variant<Challenge, Hello, Welcome, Join, Joined, Refused, Heartbeat, ReserveStorePort,
                             StorePort, GenerationMap, Start, WorkerFailed, Succeeded, Stop, Stopped, Leave,
                             Progress, Note, Stalled, Finish>;

// The most lines of a failed worker's standard error in a message; the last ones are sent.
inline constexpr size_t kMaxLines = 30;

// Whether the text can be sent as a host name or an address: not too long, and without
// control characters.
bool is_name(std::string_view text);

// A whole frame. Texts are cut to what decode() accepts and made valid UTF-8: the last lines
// of a worker may hold any bytes.
std::string encode(const Message& message);

// Throws ProtocolError unless the body is one whole message with fields of the right types
// and plausible values.
Message decode(std::string_view body);

}  // namespace wire
}  // namespace lockstep::launcher
