#include "base/job_token.h"

#include <fcntl.h>
#include <pwd.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fmt/format.h>
#include <lockstep/error.h>
#include <sodium.h>

#include <array>
#include <cctype>
#include <cerrno>
#include <cstring>
#include <system_error>
#include "base/folder.h"

#include "base/file.h"
#include "base/unique_fd.h"

namespace lockstep::base {
namespace {

static_assert(sizeof(Proof) == crypto_auth_hmacsha512256_BYTES);
static_assert(sizeof(Proof) == crypto_aead_chacha20poly1305_ietf_KEYBYTES);
static_assert(MessageSeal::kOverheadBytes == crypto_aead_chacha20poly1305_ietf_ABYTES);

using NonceBytes = std::array<unsigned char, crypto_aead_chacha20poly1305_ietf_NPUBBYTES>;

// Each key serves one direction of one connection, so no number is used twice with it.
NonceBytes nonce_of(uint64_t count) {
  NonceBytes bytes{};
  std::memcpy(bytes.data(), &count, sizeof count);
  return bytes;
}

unsigned char* bytes_of(std::string& text) { return reinterpret_cast<unsigned char*>(text.data()); }
const unsigned char* bytes_of(std::string_view text) {
  return reinterpret_cast<const unsigned char*>(text.data());
}

constexpr char kOtherWays[] =
    "LOCKSTEP_KEY_DIR names another folder that all nodes share; LOCKSTEP_JOB_TOKEN, the same secret on all "
    "nodes, needs none";

std::filesystem::path home_folder(const Environment& environment) {
  const std::string home = environment.get("HOME").value_or("");
  if (!home.empty()) return home;
  const passwd* user = ::getpwuid(::geteuid());
  return user != nullptr && user->pw_dir != nullptr ? user->pw_dir : "/";
}

std::filesystem::path key_folder(const Environment& environment) {
  const std::string chosen = environment.get("LOCKSTEP_KEY_DIR").value_or("");
  return chosen.empty() ? home_folder(environment) / ".lockstep" / "keys" : std::filesystem::path(chosen);
}

std::string file_name(std::string name) {
  for (char& c : name) {
    if (std::isalnum(static_cast<unsigned char>(c)) == 0 && c != '-' && c != '_' && c != '.') c = '_';
  }
  return name + ".key";
}

}  // namespace

// These functions of libsodium need no sodium_init(): they have no state, and the random numbers come
// from the kernel.
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
    throw ConfigError("token", fmt::format("the kernel gives no random numbers: {}", std::strerror(errno)));
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

KeyFile::KeyFile(const std::string& name, const Environment& environment)
    : path_(key_folder(environment) / file_name(name)) {}

void KeyFile::publish(const std::string& secret) const {
  try {
    std::error_code error;
    std::filesystem::create_directories(path_.parent_path(), error);
    // An existing folder keeps its mode: the file itself is not accessible to others.
    publish_file(path_, secret + "\n", 0600);
  } catch (const ConfigError& error) {
    throw ConfigError("key", fmt::format("the job's secret cannot be written to a file ({}); {}",
                                         error.what(), kOtherWays));
  }
}

std::optional<std::string> KeyFile::read() const {
  // A network file system caches that a file is missing for up to a minute. Listing the folder renews
  // the cache.
  std::error_code ignored;
  list_folder(path_.parent_path(), ignored);
  const UniqueFd fd(::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  if (!fd) return std::nullopt;
  struct stat status {};
  if (::fstat(fd.get(), &status) != 0) return std::nullopt;
  if (!S_ISREG(status.st_mode) || status.st_uid != ::geteuid() || (status.st_mode & 0077) != 0) {
    throw ConfigError("key",
                      fmt::format("'{}' must belong to this user and be inaccessible to all others, but "
                                  "its mode is {:04o}: remove it",
                                  path_.string(), status.st_mode & 07777));
  }
  std::array<char, 64> text;
  const ssize_t count = ::read(fd.get(), text.data(), text.size());
  if (count != static_cast<ssize_t>(text.size())) return std::nullopt;
  return std::string(text.data(), text.size());
}

void KeyFile::remove() const noexcept { ::unlink(path_.c_str()); }

}  // namespace lockstep::base
