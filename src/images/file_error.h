#pragma once

#include <fmt/format.h>
#include <lockstep/error.h>

#include <cstdint>
#include <filesystem>
#include <string_view>

namespace lockstep::images {

inline constexpr char kComponent[] = "images";

// The file is not what it should be, seen at this byte of it.
[[noreturn]] inline void fail_at(const std::filesystem::path& path, int64_t offset, std::string_view reason) {
  throw ConfigError(kComponent, fmt::format("'{}' is broken at byte {}: {}", path.string(), offset, reason));
}

}  // namespace lockstep::images
