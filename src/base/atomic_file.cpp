#include "base/atomic_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <lockstep/error.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>

#include "base/interrupted.h"
#include "base/unique_fd.h"

namespace lockstep::base {
namespace {

// Removes the temporary file unless it was renamed.
class TemporaryFile {
 public:
  explicit TemporaryFile(std::string path) : path_(std::move(path)) {}
  ~TemporaryFile() {
    if (!path_.empty()) ::unlink(path_.c_str());
  }
  const std::string& path() const { return path_; }
  void keep() { path_.clear(); }

 private:
  std::string path_;
};

[[noreturn]] void fail(const std::filesystem::path& path, const char* call) {
  throw ConfigError("file",
                    fmt::format("cannot write '{}': {}: {}", path.string(), call, std::strerror(errno)));
}

void write_all(int fd, std::string_view content, const std::filesystem::path& path) {
  while (!content.empty()) {
    const ssize_t written = retry_interrupted([&] { return ::write(fd, content.data(), content.size()); });
    if (written < 0) fail(path, "write");
    content.remove_prefix(static_cast<size_t>(written));
  }
}

void sync_folder(const std::filesystem::path& folder) {
  const char* path = folder.empty() ? "." : folder.c_str();
  const UniqueFd fd(retry_interrupted([&] { return ::open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC); }));
  if (fd) retry_interrupted([&] { return ::fsync(fd.get()); });
}

}  // namespace

void publish_file(const std::filesystem::path& path, std::string_view content, mode_t mode) {
  publish_file(
      path, [&](const Append& append) { append(content); }, mode);
}

void publish_file(const std::filesystem::path& path, const std::function<void(const Append&)>& write,
                  mode_t mode) {
  TemporaryFile temporary(fmt::format("{}.{}.tmp", path.string(), ::getpid()));
  UniqueFd fd(retry_interrupted(
      [&] { return ::open(temporary.path().c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, mode); }));
  if (!fd) fail(path, "open");
  write([&](std::string_view part) { write_all(fd.get(), part, path); });
  if (retry_interrupted([&] { return ::fsync(fd.get()); }) != 0) fail(path, "fsync");
  fd.reset();
  if (::rename(temporary.path().c_str(), path.c_str()) != 0) fail(path, "rename");
  temporary.keep();
  sync_folder(path.parent_path());
}

}  // namespace lockstep::base
