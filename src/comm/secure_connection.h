#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "base/job_token.h"
#include "base/unique_fd.h"

namespace lockstep::comm {

// Connections between a rank and rank 0. Both sides prove that they know the job's secret; all
// later messages are encrypted and authenticated. In this order:
//
//   rank 0                       rank
//   magic, version, nonce
//                                magic, version, purpose, rank, nonce, proof
//   proof
//   messages                     messages         (length, sealed bytes)
//
// Integers are big-endian. A proof covers both nonces, the purpose and the rank.

// What a connection is for: a proof for one purpose is not valid for another.
enum class Purpose : uint8_t { kStore = 1, kLifeline = 2 };

inline constexpr uint8_t kSecureWireVersion = 1;

struct ConnectionError : std::runtime_error {
  using std::runtime_error::runtime_error;
};
// The listener does not belong to this job, or does not accept this process as a rank of it.
struct NotOfThisJob : ConnectionError {
  using ConnectionError::ConnectionError;
};

// A rank's end. Blocking. Used by one thread at a time.
class SecureClient {
 public:
  using Deadline = std::chrono::steady_clock::time_point;

  // Authenticates on a connected socket. Throws ConnectionError.
  SecureClient(base::UniqueFd fd, const base::JobToken& token, Purpose purpose, int rank, Deadline deadline);

  // Throws ConnectionError if the connection ends, or rank 0 does not read until the deadline; the
  // connection cannot be used then.
  void send(std::string_view message, Deadline deadline);
  // nullopt: no complete message came before the deadline; polls at least once. Throws
  // ConnectionError if the connection ends.
  std::optional<std::string> receive(Deadline deadline);

  int fd() const { return fd_.get(); }

 private:
  base::UniqueFd fd_;
  std::optional<base::MessageSeal> outgoing_, incoming_;
  std::string received_;
};

// Connects to a host by name or address, and retries until the port accepts. Throws
// ConnectionError if the name does not resolve, or nothing accepted before the deadline.
base::UniqueFd connect_to(const std::string& host, uint16_t port, SecureClient::Deadline deadline);

// Rank 0's end of one connection. Never blocks. Used by one thread at a time.
class SecurePeer {
 public:
  SecurePeer(base::UniqueFd fd, const base::JobToken& token, Purpose purpose, int world_size);

  int fd() const { return fd_.get(); }
  // The other side's rank; -1 before it has authenticated.
  int rank() const { return rank_; }
  std::chrono::steady_clock::time_point since() const { return since_; }

  // Reads the bytes that have arrived. False: the connection is over; complete messages are kept.
  bool read();
  // The next complete message; nullopt: there is none.
  std::optional<std::string> next();
  // Does nothing on a connection that is over; read() reports that.
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

// --- the content of messages ---

struct MalformedMessage : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Numbers are 8 bytes, big-endian; texts are preceded by their length.
class MessageWriter {
 public:
  explicit MessageWriter(uint8_t first) : bytes_(1, static_cast<char>(first)) {}

  MessageWriter& number(int64_t value);
  MessageWriter& text(std::string_view value);
  MessageWriter& texts(const std::vector<std::string>& values);
  const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_;
};

// Throws MalformedMessage if the bytes end too early or a length is impossible.
class MessageReader {
 public:
  explicit MessageReader(std::string_view bytes) : rest_(bytes) {}

  uint8_t byte();
  int64_t number();
  std::string text();
  std::vector<std::string> texts();
  bool at_end() const { return rest_.empty(); }

 private:
  std::string_view take(size_t size);

  std::string_view rest_;
};

}  // namespace lockstep::comm
