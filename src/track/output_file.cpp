#include "track/output_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <lockstep/error.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <system_error>
#include <utility>

#include "base/file.h"
#include "base/unique_fd.h"

namespace lockstep::track {
namespace {

[[noreturn]] void fail_on(const std::filesystem::path& path, const char* call) {
  throw ConfigError("track",
                    fmt::format("cannot write '{}': {}: {}", path.string(), call, std::strerror(errno)));
}

}  // namespace

OutputFile::OutputFile(std::filesystem::path path, base::UniqueFd fd)
    : path_(std::move(path)), fd_(std::move(fd)) {
  struct stat facts {};
  if (::fstat(fd_.get(), &facts) != 0) fail("fstat");
  size_ = facts.st_size;
}

OutputFile OutputFile::append_to(const std::filesystem::path& path) {
  base::UniqueFd fd(
      base::retry_interrupted([&] { return ::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0644); }));
  if (!fd) fail_on(path, "open");
  return {path, std::move(fd)};
}

std::optional<OutputFile> OutputFile::create(const std::filesystem::path& path) {
  base::UniqueFd fd(base::retry_interrupted(
      [&] { return ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644); }));
  if (!fd && errno == EEXIST) return std::nullopt;
  if (!fd) fail_on(path, "open");
  return OutputFile(path, std::move(fd));
}

void OutputFile::fail(const char* call) const { fail_on(path_, call); }

void OutputFile::replace_from(int64_t offset, std::string_view record) {
  int64_t end = offset;
  while (!record.empty()) {
    const ssize_t written = ::pwrite(fd_.get(), record.data(), record.size(), end);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) {
      const int reason = errno;
      // Best effort: a device has no length to restore. The replaced bytes are lost.
      if (base::retry_interrupted([&] { return ::ftruncate(fd_.get(), offset); }) == 0) size_ = offset;
      errno = reason;
      fail("write");
    }
    record.remove_prefix(static_cast<size_t>(written));
    end += written;
  }
  if (end < size_ && base::retry_interrupted([&] { return ::ftruncate(fd_.get(), end); }) != 0)
    fail("ftruncate");
  size_ = end;
}

void OutputFile::sync() {
  // EINVAL: the file cannot be synced, for example a pipe.
  if (base::retry_interrupted([&] { return ::fdatasync(fd_.get()); }) != 0 && errno != EINVAL)
    fail("fdatasync");
}

void OutputFile::close() {
  if (fd_ && ::close(fd_.release()) != 0) fail("close");
}

void make_folder(const std::filesystem::path& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) {
    throw ConfigError("track",
                      fmt::format("cannot make the folder '{}': {}", folder.string(), error.message()));
  }
}

std::string read_file(const std::filesystem::path& path) {
  if (!std::filesystem::exists(path)) return "";
  std::optional<std::string> content = base::read_whole_file(path);
  if (!content) {
    throw ConfigError("track", fmt::format("cannot read '{}': {}", path.string(), std::strerror(errno)));
  }
  return std::move(*content);
}

void rename_old_file(const std::filesystem::path& path) {
  if (!std::filesystem::exists(path)) return;
  std::filesystem::path other = path;
  for (int number = 1; std::filesystem::exists(other); ++number) {
    other.replace_filename(fmt::format("{}.{}{}", path.stem().string(), number, path.extension().string()));
  }
  if (::rename(path.c_str(), other.c_str()) != 0) fail_on(other, "rename");
}

}  // namespace lockstep::track
