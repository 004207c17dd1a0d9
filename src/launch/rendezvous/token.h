#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace lockstep::launcher {

using Nonce = std::array<uint8_t, 32>;
using Proof = std::array<uint8_t, 32>;

// Proves knowledge of the job's token without sending it: an HMAC over one fresh
// nonce of each side and the name of the side that proves. Both sides prove, so
// that a launcher tells nothing to a stranger who sits on the coordinator's port.
class JobToken {
 public:
  enum class Side : uint8_t { kMember = 1, kCoordinator = 2 };

  explicit JobToken(std::string_view token);

  // statement: what the side says besides; "": that it knows the token.
  Proof prove(Side side, const Nonce& coordinator, const Nonce& member,
              std::string_view statement = "") const;
  // In constant time.
  bool verify(const Proof& proof, Side side, const Nonce& coordinator, const Nonce& member,
              std::string_view statement = "") const;

 private:
  std::array<uint8_t, 32> key_;
};

// From the kernel's random numbers.
Nonce make_nonce();

// A new token, 64 hexadecimal digits.
std::string make_token();

std::string to_hex(const std::array<uint8_t, 32>& bytes);
// False where the text is anything but 64 hexadecimal digits.
bool from_hex(std::string_view text, std::array<uint8_t, 32>& bytes);

}  // namespace lockstep::launcher
