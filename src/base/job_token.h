#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace lockstep::base {

using Nonce = std::array<uint8_t, 32>;
using Proof = std::array<uint8_t, 32>;

// Encrypts and authenticates the messages of one direction of a connection, each by its
// number: what a stranger made, changed, repeated, left out or put in another order does
// not open.
class MessageSeal {
 public:
  // By how much a sealed message is longer.
  static constexpr size_t kOverheadBytes = 16;

  explicit MessageSeal(const std::array<uint8_t, 32>& key) : key_(key) {}

  std::string seal(std::string_view message);
  // nullopt: it is not the next message of the other side.
  std::optional<std::string> open(std::string_view sealed);

 private:
  std::array<uint8_t, 32> key_;
  uint64_t count_ = 0;
};

// Proves knowledge of the job's token without sending it: an HMAC over one fresh
// nonce of each side and the name of the side that proves. Both sides prove, so
// that a member tells nothing to a stranger who sits on the host's port.
class JobToken {
 public:
  // Who goes to the port, and who listens on it.
  enum class Side : uint8_t { kMember = 1, kCoordinator = 2 };

  explicit JobToken(std::string_view token);

  // statement: what the side says besides; "": that it knows the token.
  Proof prove(Side side, const Nonce& coordinator, const Nonce& member,
              std::string_view statement = "") const;
  // In constant time.
  bool verify(const Proof& proof, Side side, const Nonce& coordinator, const Nonce& member,
              std::string_view statement = "") const;

  // For what `from` sends on the connection of these nonces, after both have proven.
  MessageSeal seal(Side from, const Nonce& coordinator, const Nonce& member) const;

  // A token for one use of this one: who knows the new one does not know this one.
  std::string derive(std::string_view use) const;
  // A proof that nobody need answer: of a text that is said once.
  Proof sign(std::string_view text) const;

 private:
  std::array<uint8_t, 32> key_;
};

// In constant time.
bool equal(const Proof& a, const Proof& b);

// From the kernel's random numbers.
Nonce make_nonce();

// A new token, 64 hexadecimal digits.
std::string make_token();

std::string to_hex(const std::array<uint8_t, 32>& bytes);
// False where the text is anything but 64 hexadecimal digits.
bool from_hex(std::string_view text, std::array<uint8_t, 32>& bytes);

}  // namespace lockstep::base
