#include "launch/rendezvous/token.h"

#include <fmt/format.h>
#include <lockstep/error.h>
#include <sodium.h>
#include <sys/random.h>

#include <cerrno>
#include <cstring>

namespace lockstep::launcher {
namespace {

static_assert(sizeof(Proof) == crypto_auth_hmacsha512256_BYTES);

}  // namespace

// libsodium's hash and HMAC need no sodium_init(): they have no state, and the random
// numbers here are the kernel's.
JobToken::JobToken(std::string_view token) {
  static_assert(sizeof(key_) == crypto_auth_hmacsha512256_KEYBYTES);
  crypto_hash_sha256(key_.data(), reinterpret_cast<const unsigned char*>(token.data()), token.size());
}

Proof JobToken::prove(Side side, const Nonce& coordinator, const Nonce& member,
                      std::string_view statement) const {
  const auto side_byte = static_cast<unsigned char>(side);
  Proof proof;
  crypto_auth_hmacsha512256_state state;
  crypto_auth_hmacsha512256_init(&state, key_.data(), key_.size());
  crypto_auth_hmacsha512256_update(&state, &side_byte, 1);
  crypto_auth_hmacsha512256_update(&state, coordinator.data(), coordinator.size());
  crypto_auth_hmacsha512256_update(&state, member.data(), member.size());
  crypto_auth_hmacsha512256_update(&state, reinterpret_cast<const unsigned char*>(statement.data()),
                                   statement.size());
  crypto_auth_hmacsha512256_final(&state, proof.data());
  return proof;
}

bool JobToken::verify(const Proof& proof, Side side, const Nonce& coordinator, const Nonce& member,
                      std::string_view statement) const {
  const Proof expected = prove(side, coordinator, member, statement);
  return sodium_memcmp(expected.data(), proof.data(), proof.size()) == 0;
}

Nonce make_nonce() {
  Nonce nonce;
  if (::getrandom(nonce.data(), nonce.size(), 0) != static_cast<ssize_t>(nonce.size())) {
    throw ConfigError("rendezvous",
                      fmt::format("the system gives no random numbers: {}", std::strerror(errno)));
  }
  return nonce;
}

std::string make_token() { return to_hex(make_nonce()); }

std::string to_hex(const std::array<uint8_t, 32>& bytes) {
  std::array<char, 65> text;
  sodium_bin2hex(text.data(), text.size(), bytes.data(), bytes.size());
  return text.data();
}

bool from_hex(std::string_view text, std::array<uint8_t, 32>& bytes) {
  size_t length = 0;
  const char* end = nullptr;
  return text.size() == 2 * bytes.size() &&
         sodium_hex2bin(bytes.data(), bytes.size(), text.data(), text.size(), nullptr, &length, &end) == 0 &&
         length == bytes.size() && end == text.data() + text.size();
}

}  // namespace lockstep::launcher
