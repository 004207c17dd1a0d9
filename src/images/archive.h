#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "images/shared_bytes.h"

namespace lockstep::images {

// What one file of an archive may have at most: several times the largest of a real set.
inline constexpr int64_t kMaxEntryBytes = int64_t{256} << 20;

// The files of a tar archive, plain or compressed (gzip, xz, bzip2, zstd), whose last
// name is among these, in whatever folder of the archive they lie; nothing is written to
// the disk. Missing ones are left out. ConfigError: no tar archive, cut, or a file in it
// that is larger than kMaxEntryBytes or there twice before all are found.
std::map<std::string, SharedBytes> read_archive(const std::filesystem::path& path,
                                                const std::vector<std::string>& names);

}  // namespace lockstep::images
