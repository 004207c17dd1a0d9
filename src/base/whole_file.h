#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace lockstep::base {

// The bytes of a file, the first `limit` of them where it has more. nullopt: it cannot be opened or
// read, and errno says why. Streams of the standard library do not: they take an error for the end,
// or throw one that names neither the file nor the reason.
std::optional<std::string> read_whole_file(const std::filesystem::path& path, size_t limit = SIZE_MAX);

}  // namespace lockstep::base
