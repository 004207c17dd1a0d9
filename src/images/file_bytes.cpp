#include "images/file_bytes.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <new>

#include "base/file.h"
#include "base/unique_fd.h"

namespace lockstep::images {

void fail_at(const std::filesystem::path& path, int64_t offset, std::string_view reason) {
  throw ConfigError(kComponent, fmt::format("'{}' is broken at byte {}: {}", path.string(), offset, reason));
}

void fail_at_line(const std::filesystem::path& path, int64_t line, std::string_view reason) {
  throw ConfigError(kComponent, fmt::format("'{}' is broken at line {}: {}", path.string(), line, reason));
}

SharedBytes map_file(const std::filesystem::path& path) {
  auto file = std::make_shared<const base::MappedFile>(path, kComponent);
  const std::span<const uint8_t> bytes = file->bytes();
  return {std::move(file), bytes};
}

SharedBytes read_file(const std::filesystem::path& path) {
  const auto fail = [&](const char* reason) {
    throw ConfigError(kComponent, fmt::format("cannot read '{}': {}", path.string(), reason));
  };
  const base::UniqueFd fd(
      base::retry_interrupted([&] { return ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK); }));
  struct stat state {};
  if (!fd || ::fstat(fd.get(), &state) != 0) fail(std::strerror(errno));
  if (!S_ISREG(state.st_mode)) fail("not a regular file");
  if (state.st_size > kMaxReadBytes) fail("larger than a picture is");
  WritableBytes data = allocate_bytes(static_cast<size_t>(state.st_size), path);
  for (size_t done = 0, size = data.shared.bytes.size(); done < size;) {
    const ssize_t got = ::read(fd.get(), data.data + done, size - done);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail(std::strerror(errno));
    if (got == 0) fail("the file became shorter while it was read");
    done += static_cast<size_t>(got);
  }
  return std::move(data.shared);
}

WritableBytes allocate_bytes(size_t count, const std::filesystem::path& path) {
  // Uninitialised: pages that are never written cost no memory.
  auto* data = new (std::nothrow) uint8_t[count];
  if (data == nullptr) {
    throw ConfigError(kComponent, fmt::format("no memory for the {} bytes of '{}'", count, path.string()));
  }
  std::shared_ptr<const void> owner(data, [data](const void*) { delete[] data; });
  return {{std::move(owner), {data, count}}, data};
}

}  // namespace lockstep::images
