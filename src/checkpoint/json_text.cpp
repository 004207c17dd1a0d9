#include "checkpoint/json_text.h"

#include <fmt/format.h>

#include "checkpoint/checksum.h"
#include "checkpoint/error.h"

namespace lockstep::checkpoint {

void fail_broken(const std::filesystem::path& path, const std::string& reason) {
  throw CheckpointError(fmt::format("'{}' is broken: {}", path.string(), reason));
}

std::string JsonObject::checksum(const char* key) const {
  std::string result = text(key);
  if (!is_checksum(result)) fail(key, fmt::format("not {} hex digits", kChecksumDigits));
  return result;
}

}  // namespace lockstep::checkpoint
