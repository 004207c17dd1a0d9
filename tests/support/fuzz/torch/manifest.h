#pragma once

#include <string>
#include <string_view>

#include "checkpoint/checksum.h"
#include "checkpoint/error.h"
#include "checkpoint/manifest.h"
#include "support/fuzz/finding.h"

namespace lockstep::fuzz {

// With the checksum of the text after it, as a manifest begins.
inline std::string with_checksum(std::string_view rest) {
  return "{\"checksum\":\"" + checkpoint::checksum_of(rest) + "\"," + std::string(rest);
}

inline bool takes_manifest_text(std::string_view text) {
  try {
    const checkpoint::Manifest manifest = checkpoint::Manifest::parse(text, "manifest.json");
    const std::string written = manifest.to_text();
    require(checkpoint::Manifest::parse(written, "again").to_text() == written, "it reads the same again");
    return true;
  } catch (const checkpoint::CheckpointError&) {
    return false;
  }
}

// The text after the checksum, so that changes reach the contents.
inline bool takes_manifest(std::string_view bytes) { return takes_manifest_text(with_checksum(bytes)); }

}  // namespace lockstep::fuzz
