#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>

namespace lockstep::interop {

// How LibTorch's archive writers hand over bytes; returns how many were taken.
using ArchiveOutput = std::function<size_t(const void* data, size_t bytes)>;

// Publishes the archive that `write` makes as base::publish_file does. ConfigError: it
// cannot be written.
void publish_archive(const std::filesystem::path& path,
                     const std::function<void(const ArchiveOutput&)>& write);

}  // namespace lockstep::interop
