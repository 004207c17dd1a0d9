#include "checkpoint/file_system.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <fmt/format.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <string>

#include "base/folder.h"
#include "base/log.h"
#include "base/unique_fd.h"
#include "checkpoint/error.h"

namespace lockstep::checkpoint {
namespace {

[[noreturn]] void fail_call(const char* what, const std::filesystem::path& path, int error = errno) {
  throw CheckpointError(fmt::format("cannot {} '{}': {}", what, path.string(), std::strerror(error)));
}

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

base::UniqueFd FileSystem::create(const std::filesystem::path& path) {
  base::UniqueFd fd(base::retry_interrupted(
      [&] { return ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644); }));
  if (!fd) fail_call("create", path);
  return fd;
}

bool FileSystem::allocate(int fd, int64_t bytes, const std::filesystem::path& path) {
  if (bytes == 0 || base::retry_interrupted([&] { return ::fallocate(fd, 0, 0, bytes); }) == 0) return true;
  if (errno == EOPNOTSUPP || errno == ENOSYS) return false;
  fail_call("reserve space for", path);
}

size_t FileSystem::write(int fd, const void* data, size_t bytes, int64_t offset,
                         const std::filesystem::path& path) {
  const ssize_t written = base::retry_interrupted([&] { return ::pwrite(fd, data, bytes, offset); });
  if (written < 0) fail_call("write", path);
  if (written == 0 && bytes != 0) fail_call("write", path, ENOSPC);
  return static_cast<size_t>(written);
}

void FileSystem::start_writing_back(int fd, int64_t offset, int64_t bytes) {
  ::sync_file_range(fd, offset, bytes, SYNC_FILE_RANGE_WRITE);
}

void FileSystem::sync(int fd, const std::filesystem::path& path) {
  if (base::retry_interrupted([&] { return ::fsync(fd); }) != 0) fail_call("sync", path);
}

void FileSystem::sync_folder(const std::filesystem::path& path) {
  const base::UniqueFd fd(
      base::retry_interrupted([&] { return ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); }));
  if (!fd) fail_call("open", path);
  // EINVAL: the file system cannot sync a folder.
  if (base::retry_interrupted([&] { return ::fsync(fd.get()); }) != 0 && errno != EINVAL)
    fail_call("sync", path);
}

void FileSystem::make_folder(const std::filesystem::path& path) {
  if (::mkdir(path.c_str(), 0755) != 0) fail_call("make folder", path);
}

void FileSystem::rename(const std::filesystem::path& from, const std::filesystem::path& to) {
  if (::rename(from.c_str(), to.c_str()) != 0) fail_call("rename to", to);
}

void FileSystem::remove_file(const std::filesystem::path& path) {
  if (::unlink(path.c_str()) != 0) fail_call("remove", path);
}

void FileSystem::remove_folder(const std::filesystem::path& path) {
  if (::rmdir(path.c_str()) != 0) fail_call("remove", path);
}

int64_t FileSystem::free_bytes(const std::filesystem::path& folder) {
  struct statvfs state {};
  if (base::retry_interrupted([&] { return ::statvfs(folder.c_str(), &state); }) != 0)
    fail_call("ask for the free space of", folder);
  return static_cast<int64_t>(state.f_bavail) * static_cast<int64_t>(state.f_frsize);
}

FileSystem& real_files() {
  static FileSystem files;
  return files;
}

void write_all(FileSystem& files, int fd, const void* data, size_t bytes, int64_t offset,
               const std::filesystem::path& path) {
  const char* next = static_cast<const char*>(data);
  while (bytes > 0) {
    const size_t written = files.write(fd, next, bytes, offset, path);
    next += written;
    bytes -= written;
    offset += static_cast<int64_t>(written);
  }
}

void publish_file(FileSystem& files, const std::filesystem::path& path, std::string_view content) {
  const std::filesystem::path temporary = fmt::format("{}.{}.tmp", path.string(), ::getpid());
  // An earlier process with this number, or a removal that failed, left it.
  if (std::filesystem::exists(temporary)) files.remove_file(temporary);
  const base::UniqueFd fd = files.create(temporary);
  try {
    write_all(files, fd.get(), content.data(), content.size(), 0, temporary);
    files.sync(fd.get(), temporary);
    files.rename(temporary, path);
  } catch (const Error&) {
    try {
      files.remove_file(temporary);
    } catch (const Error&) {  // the first error is more useful; the next call removes the file
    }
    throw;
  }
  files.sync_folder(path.parent_path());
}

void remove_tree(FileSystem& files, const std::filesystem::path& folder) {
  std::error_code error;
  const std::vector<base::FolderEntry> found = base::list_folder(folder, error);
  if (error) fail_call("read folder", folder, error.value());
  for (const base::FolderEntry& entry : found) {
    if (entry.is_folder() && !entry.is_link()) {
      remove_tree(files, entry.path());
    } else {
      files.remove_file(entry.path());
    }
  }
  files.remove_folder(folder);
}

FolderLock::FolderLock(const std::filesystem::path& folder) {
  const std::filesystem::path path = folder / kLockName;
  base::UniqueFd fd(
      base::retry_interrupted([&] { return ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644); }));
  if (!fd) throw CheckpointError(fmt::format("cannot open '{}': {}", path.string(), std::strerror(errno)));
  if (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno == EWOULDBLOCK) {
      throw ConfigError(
          "checkpoint",
          fmt::format("another run writes into '{}': {}. End it, or give this run another folder",
                      folder.string(), holder(fd.get())));
    }
    base::log_warning("checkpoint", "cannot lock '{}', so two runs in it would not notice each other: {}",
                      path.string(), std::strerror(errno));
    return;
  }
  const std::string text = fmt::format("process {} on {}\n", ::getpid(), host_name());
  // For the error of other processes. On a full disk the lock holds without this text.
  if (base::retry_interrupted([&] { return ::ftruncate(fd.get(), 0); }) != 0 ||
      base::retry_interrupted([&] { return ::pwrite(fd.get(), text.data(), text.size(), 0); }) < 0) {
    base::log_warning("checkpoint", "cannot write '{}': {}", path.string(), std::strerror(errno));
  }
  fd_ = std::move(fd);
}

}  // namespace lockstep::checkpoint
