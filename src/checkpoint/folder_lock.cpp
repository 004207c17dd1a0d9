#include "checkpoint/folder_lock.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <string>

#include "base/interrupted.h"
#include "base/log.h"
#include "checkpoint/error.h"

namespace lockstep::checkpoint {
namespace {

constexpr char kLockName[] = "lock";

std::string host_name() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "an unknown host";
}

std::string holder(int fd) {
  std::array<char, 256> text{};
  const ssize_t size = ::pread(fd, text.data(), text.size() - 1, 0);
  std::string result(text.data(), static_cast<size_t>(std::max<ssize_t>(size, 0)));
  while (!result.empty() && result.back() == '\n') result.pop_back();
  return result.empty() ? "a process that has not written its name yet" : result;
}

}  // namespace

FolderLock::FolderLock(const std::filesystem::path& folder) {
  const std::filesystem::path path = folder / kLockName;
  base::UniqueFd fd(
      base::retry_interrupted([&] { return ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644); }));
  if (!fd) throw CheckpointError(fmt::format("cannot open '{}': {}", path.string(), std::strerror(errno)));
  if (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno == EWOULDBLOCK) {
      throw ConfigError(
          "checkpoint",
          fmt::format("another run writes into '{}': {}. End it, or give this run a folder of its own",
                      folder.string(), holder(fd.get())));
    }
    base::log_warning("checkpoint", "cannot lock '{}', so two runs in it would not notice each other: {}",
                      path.string(), std::strerror(errno));
    return;
  }
  const std::string text = fmt::format("process {} on {}\n", ::getpid(), host_name());
  // For the eyes of whom we keep out. On a full disk the lock holds without it.
  if (base::retry_interrupted([&] { return ::ftruncate(fd.get(), 0); }) != 0 ||
      base::retry_interrupted([&] { return ::pwrite(fd.get(), text.data(), text.size(), 0); }) < 0) {
    base::log_warning("checkpoint", "cannot write '{}': {}", path.string(), std::strerror(errno));
  }
  fd_ = std::move(fd);
}

}  // namespace lockstep::checkpoint
