#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "base/environment.h"

namespace lockstep::base {

using Nonce = std::array<uint8_t, 32>;
using Proof = std::array<uint8_t, 32>;

// Encrypts and authenticates the messages of one direction of a connection. Each message is bound to its
// number, so that one that is forged, changed, repeated, reordered or follows a lost one does not open.
class MessageSeal {
 public:
  // A sealed message is longer by this.
  static constexpr size_t kOverheadBytes = 16;

  explicit MessageSeal(const std::array<uint8_t, 32>& key) : key_(key) {}

  std::string seal(std::string_view message);
  // nullopt: this is not the next message of the other side.
  std::optional<std::string> open(std::string_view sealed);

 private:
  std::array<uint8_t, 32> key_;
  uint64_t count_ = 0;
};

// Proves knowledge of the job's token without sending it: an HMAC over one new nonce of each side and
// the side that proves. Both sides prove, so that a member sends nothing to another program that took
// the coordinator's port.
class JobToken {
 public:
  // The member connects, the coordinator listens.
  enum class Side : uint8_t { kMember = 1, kCoordinator = 2 };

  explicit JobToken(std::string_view token);

  // statement: a text that the proof also covers.
  Proof prove(Side side, const Nonce& coordinator, const Nonce& member,
              std::string_view statement = "") const;
  // In constant time.
  bool verify(const Proof& proof, Side side, const Nonce& coordinator, const Nonce& member,
              std::string_view statement = "") const;

  // The seal of the messages that `from` sends on the connection with these nonces, after both proofs.
  MessageSeal seal(Side from, const Nonce& coordinator, const Nonce& member) const;

  // A token for one purpose. This token cannot be computed from it.
  std::string derive(std::string_view use) const;
  // A proof for a text that is sent once, without nonces.
  Proof sign(std::string_view text) const;

 private:
  std::array<uint8_t, 32> key_;
};

// In constant time.
bool equal(const Proof& a, const Proof& b);

// Random numbers of the kernel.
Nonce make_nonce();

// A new random token of 64 hexadecimal digits.
std::string make_token();

std::string to_hex(const std::array<uint8_t, 32>& bytes);
// False: the text is not 64 hexadecimal digits.
bool from_hex(std::string_view text, std::array<uint8_t, 32>& bytes);

// Shares a secret between the processes of one user on several machines if the user did not set one: the
// first process writes a new secret to a file that only this user can read, in a folder that all of them
// see. The folder is LOCKSTEP_KEY_DIR, else .lockstep/keys in the user's home.
class KeyFile {
 public:
  // name: the job's name, the same in all its processes; characters that are unusual in file names are
  // replaced.
  KeyFile(const std::string& name, const Environment& environment);

  const std::filesystem::path& path() const { return path_; }

  // Creates the folder if it is missing, and replaces the file of an earlier job of this name.
  // ConfigError names the alternatives.
  void publish(const std::string& secret) const;

  // nullopt: the file does not exist yet. ConfigError: it exists, but other users could have read or
  // written it.
  std::optional<std::string> read() const;

  // To be called once all processes have read it.
  void remove() const noexcept;

 private:
  std::filesystem::path path_;
};

}  // namespace lockstep::base
