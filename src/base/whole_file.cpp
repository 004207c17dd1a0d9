#include "base/whole_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>

#include "base/interrupted.h"
#include "base/unique_fd.h"

namespace lockstep::base {

std::optional<std::string> read_whole_file(const std::filesystem::path& path, size_t limit) {
  const UniqueFd fd(retry_interrupted([&] { return ::open(path.c_str(), O_RDONLY | O_CLOEXEC); }));
  if (!fd) return std::nullopt;
  std::string content;
  std::array<char, 1 << 16> buffer;
  while (content.size() < limit) {
    const size_t wanted = std::min(buffer.size(), limit - content.size());
    const ssize_t got = retry_interrupted([&] { return ::read(fd.get(), buffer.data(), wanted); });
    if (got < 0) return std::nullopt;
    if (got == 0) break;
    content.append(buffer.data(), static_cast<size_t>(got));
  }
  return content;
}

}  // namespace lockstep::base
