#pragma once

#include <lockstep/error.h>

#include <cstdint>
#include <filesystem>
#include <string_view>

namespace lockstep::images {

inline constexpr char kComponent[] = "images";

// The file is not what it should be, seen at this byte of it.
[[noreturn]] void fail_at(const std::filesystem::path& path, int64_t offset, std::string_view reason);

// The same of a file of text, seen in this line of it, from 1.
[[noreturn]] void fail_at_line(const std::filesystem::path& path, int64_t line, std::string_view reason);

// The same where the library that decodes says no byte.
[[noreturn]] void fail_picture(const std::filesystem::path& path, size_t file_bytes, std::string_view reason);

// Fails unless a picture has pixels, and not more than one may have.
void check_picture_size(int64_t width, int64_t height, const std::filesystem::path& path, size_t file_bytes);

}  // namespace lockstep::images
