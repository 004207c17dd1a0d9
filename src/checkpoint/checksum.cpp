#include "checkpoint/checksum.h"

#include <fmt/format.h>

#include <algorithm>

// Compiled in, not linked: an installed Lockstep does not need libxxhash.
#define XXH_INLINE_ALL
#include <xxhash.h>

namespace lockstep::checkpoint {
namespace {

std::string to_hex(XXH128_hash_t hash) { return fmt::format("{:016x}{:016x}", hash.high64, hash.low64); }

}  // namespace

struct Checksum::State {
  XXH3_state_t xxh;
};

Checksum::Checksum() : state_(std::make_unique<State>()) { XXH3_128bits_reset(&state_->xxh); }

Checksum::~Checksum() = default;

void Checksum::update(const void* data, size_t bytes) {
  if (bytes != 0) XXH3_128bits_update(&state_->xxh, data, bytes);
}

std::string Checksum::hex() const { return to_hex(XXH3_128bits_digest(&state_->xxh)); }

std::string checksum_of(std::string_view bytes) { return to_hex(XXH3_128bits(bytes.data(), bytes.size())); }

bool is_checksum(std::string_view text) {
  return text.size() == kChecksumDigits && std::all_of(text.begin(), text.end(), [](char c) {
           return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
         });
}

}  // namespace lockstep::checkpoint
