#include "base/job_token.h"

#include <fmt/format.h>
#include <lockstep/error.h>
#include <sodium.h>
#include <sys/random.h>

#include <cerrno>
#include <cstring>

namespace lockstep::base {
namespace {

static_assert(sizeof(Proof) == crypto_auth_hmacsha512256_BYTES);
static_assert(sizeof(Proof) == crypto_aead_chacha20poly1305_ietf_KEYBYTES);
static_assert(MessageSeal::kOverheadBytes == crypto_aead_chacha20poly1305_ietf_ABYTES);

using NonceBytes = std::array<unsigned char, crypto_aead_chacha20poly1305_ietf_NPUBBYTES>;

// A key is used for one direction of one connection, so that a number is used once.
NonceBytes nonce_of(uint64_t count) {
  NonceBytes bytes{};
  std::memcpy(bytes.data(), &count, sizeof count);
  return bytes;
}

unsigned char* bytes_of(std::string& text) { return reinterpret_cast<unsigned char*>(text.data()); }
const unsigned char* bytes_of(std::string_view text) {
  return reinterpret_cast<const unsigned char*>(text.data());
}

}  // namespace

// libsodium's functions here need no sodium_init(): they have no state, and the random
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

bool equal(const Proof& a, const Proof& b) { return sodium_memcmp(a.data(), b.data(), a.size()) == 0; }

bool JobToken::verify(const Proof& proof, Side side, const Nonce& coordinator, const Nonce& member,
                      std::string_view statement) const {
  return equal(prove(side, coordinator, member, statement), proof);
}

MessageSeal JobToken::seal(Side from, const Nonce& coordinator, const Nonce& member) const {
  return MessageSeal(prove(from, coordinator, member, "key of the messages that follow"));
}

Proof JobToken::sign(std::string_view text) const { return prove(Side::kMember, {}, {}, text); }

std::string JobToken::derive(std::string_view use) const {
  return to_hex(prove(Side::kCoordinator, {}, {}, fmt::format("token for {}", use)));
}

std::string MessageSeal::seal(std::string_view message) {
  std::string sealed(message.size() + kOverheadBytes, '\0');
  const NonceBytes nonce = nonce_of(count_++);
  crypto_aead_chacha20poly1305_ietf_encrypt(bytes_of(sealed), nullptr, bytes_of(message), message.size(),
                                            nullptr, 0, nullptr, nonce.data(), key_.data());
  return sealed;
}

std::optional<std::string> MessageSeal::open(std::string_view sealed) {
  if (sealed.size() < kOverheadBytes) return std::nullopt;
  std::string message(sealed.size() - kOverheadBytes, '\0');
  const NonceBytes nonce = nonce_of(count_);
  if (crypto_aead_chacha20poly1305_ietf_decrypt(bytes_of(message), nullptr, nullptr, bytes_of(sealed),
                                                sealed.size(), nullptr, 0, nonce.data(), key_.data()) != 0) {
    return std::nullopt;
  }
  ++count_;
  return message;
}

Nonce make_nonce() {
  Nonce nonce;
  if (::getrandom(nonce.data(), nonce.size(), 0) != static_cast<ssize_t>(nonce.size())) {
    throw ConfigError("token", fmt::format("the system gives no random numbers: {}", std::strerror(errno)));
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

}  // namespace lockstep::base
