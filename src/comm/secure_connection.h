#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>

#include "base/job_token.h"
#include "base/unique_fd.h"

namespace lockstep::comm {

// Connections between a rank and rank 0 on which both have proven that they know the job's
// secret, and on which everything after that is encrypted and authenticated. In this order:
//
//   rank 0                       rank
//   magic, version, nonce
//                                magic, version, purpose, rank, nonce, proof
//   proof
//   messages                     messages         (length, sealed bytes)
//
// Integers are big-endian. A proof covers both nonces, the purpose and the rank.

// What a connection is for: a proof for one purpose is worthless for another.
enum class Purpose : uint8_t { kStore = 1, kLifeline = 2 };

inline constexpr uint8_t kSecureWireVersion = 1;

struct ConnectionError : std::runtime_error {
  using std::runtime_error::runtime_error;
};
// Whoever listens there is not of this job, or takes us for one who is not.
struct NotOfThisJob : ConnectionError {
  using ConnectionError::ConnectionError;
};

// A rank's end. Blocking. Used by one thread at a time.
class SecureClient {
 public:
  using Deadline = std::chrono::steady_clock::time_point;

  // Proves on a connected socket. Throws ConnectionError.
  SecureClient(base::UniqueFd fd, const base::JobToken& token, Purpose purpose, int rank, Deadline deadline);

  // Throws ConnectionError where the connection ends, or nobody reads until the deadline; it
  // is of no use then.
  void send(std::string_view message, Deadline deadline);
  // nullopt: no whole message came before the deadline; looks at least once. Throws
  // ConnectionError where the connection ends.
  std::optional<std::string> receive(Deadline deadline);

  int fd() const { return fd_.get(); }

 private:
  base::UniqueFd fd_;
  std::optional<base::MessageSeal> outgoing_, incoming_;
  std::string received_;
};

// Connects to a host by name or address, again and again until somebody listens there. Throws
// ConnectionError: the name does not resolve, or nobody accepted before the deadline.
base::UniqueFd connect_to(const std::string& host, uint16_t port, SecureClient::Deadline deadline);

// Rank 0's end of one connection. Never blocks. Used by one thread at a time.
class SecurePeer {
 public:
  SecurePeer(base::UniqueFd fd, const base::JobToken& token, Purpose purpose, int world_size);

  int fd() const { return fd_.get(); }
  // Who it is, once it has proven it; -1 before.
  int rank() const { return rank_; }
  std::chrono::steady_clock::time_point since() const { return since_; }

  // Reads what is there. False: the connection is over; messages that came before are kept.
  bool read();
  // The next message that came.
  std::optional<std::string> next();
  // Nothing happens on a connection that is over, which read() then notices.
  void send(std::string_view message);
  bool has_unsent() const { return !unsent_.empty(); }
  void flush();

 private:
  bool take_proof();

  base::UniqueFd fd_;
  const base::JobToken& token_;
  const Purpose purpose_;
  const int world_size_;
  const base::Nonce nonce_;
  const std::chrono::steady_clock::time_point since_;
  int rank_ = -1;
  bool broken_ = false;
  std::optional<base::MessageSeal> outgoing_, incoming_;
  std::string received_;
  std::string unsent_;
};

}  // namespace lockstep::comm
