#include "interop/file_bytes.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <lockstep/error.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/interrupted.h"

namespace lockstep::interop {
namespace {

[[noreturn]] void fail(const std::filesystem::path& path, const char* reason) {
  throw ConfigError("interop", fmt::format("cannot read '{}': {}", path.string(), reason));
}

}  // namespace

FileBytes::FileBytes(const std::filesystem::path& path)
    : path_(path), fd_(base::retry_interrupted([&] { return ::open(path.c_str(), O_RDONLY | O_CLOEXEC); })) {
  struct stat status {};
  if (!fd_ || ::fstat(fd_.get(), &status) != 0) fail(path, std::strerror(errno));
  if (!S_ISREG(status.st_mode)) fail(path, "it is no file");
  size_ = static_cast<size_t>(status.st_size);
}

size_t FileBytes::read(uint64_t position, void* buffer, size_t n, const char* /*what*/) const {
  size_t done = 0;
  n = position < size_ ? std::min(n, size_ - static_cast<size_t>(position)) : 0;
  while (done < n) {
    const ssize_t got =
        ::pread(fd_.get(), static_cast<char*>(buffer) + done, n - done, static_cast<off_t>(position + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail(path_, std::strerror(errno));
    if (got == 0) break;  // cut while it is read
    done += static_cast<size_t>(got);
  }
  return done;
}

std::string FileBytes::read_text(uint64_t position, size_t n) const {
  std::string text(position < size_ ? std::min(n, size_ - static_cast<size_t>(position)) : 0, '\0');
  text.resize(read(position, text.data(), text.size()));
  return text;
}

}  // namespace lockstep::interop
