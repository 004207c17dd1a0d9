#include "checkpoint/file_system.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/interrupted.h"
#include "checkpoint/error.h"

namespace lockstep::checkpoint {
namespace {

[[noreturn]] void fail(const char* what, const std::filesystem::path& path, int error = errno) {
  throw CheckpointError(fmt::format("cannot {} '{}': {}", what, path.string(), std::strerror(error)));
}

}  // namespace

base::UniqueFd FileSystem::create(const std::filesystem::path& path) {
  base::UniqueFd fd(base::retry_interrupted(
      [&] { return ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644); }));
  if (!fd) fail("create", path);
  return fd;
}

bool FileSystem::allocate(int fd, int64_t bytes, const std::filesystem::path& path) {
  if (bytes == 0 || base::retry_interrupted([&] { return ::fallocate(fd, 0, 0, bytes); }) == 0) return true;
  if (errno == EOPNOTSUPP || errno == ENOSYS) return false;
  fail("reserve space for", path);
}

size_t FileSystem::write(int fd, const void* data, size_t bytes, int64_t offset,
                         const std::filesystem::path& path) {
  const ssize_t written = base::retry_interrupted([&] { return ::pwrite(fd, data, bytes, offset); });
  if (written < 0) fail("write", path);
  if (written == 0 && bytes != 0) fail("write", path, ENOSPC);
  return static_cast<size_t>(written);
}

void FileSystem::start_writing_back(int fd, int64_t offset, int64_t bytes) {
  ::sync_file_range(fd, offset, bytes, SYNC_FILE_RANGE_WRITE);
}

void FileSystem::sync(int fd, const std::filesystem::path& path) {
  if (base::retry_interrupted([&] { return ::fsync(fd); }) != 0) fail("sync", path);
}

void FileSystem::sync_folder(const std::filesystem::path& path) {
  const base::UniqueFd fd(
      base::retry_interrupted([&] { return ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); }));
  if (!fd) fail("open", path);
  // A file system that cannot sync a folder says EINVAL.
  if (base::retry_interrupted([&] { return ::fsync(fd.get()); }) != 0 && errno != EINVAL) fail("sync", path);
}

void FileSystem::make_folder(const std::filesystem::path& path) {
  if (::mkdir(path.c_str(), 0755) != 0) fail("make folder", path);
}

void FileSystem::rename(const std::filesystem::path& from, const std::filesystem::path& to) {
  if (::rename(from.c_str(), to.c_str()) != 0) fail("rename to", to);
}

void FileSystem::remove_file(const std::filesystem::path& path) {
  if (::unlink(path.c_str()) != 0) fail("remove", path);
}

void FileSystem::remove_folder(const std::filesystem::path& path) {
  if (::rmdir(path.c_str()) != 0) fail("remove", path);
}

int64_t FileSystem::free_bytes(const std::filesystem::path& folder) {
  struct statvfs state {};
  if (base::retry_interrupted([&] { return ::statvfs(folder.c_str(), &state); }) != 0)
    fail("ask for the free space of", folder);
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
  // Left by a process of this number, or by a removal that failed.
  if (std::filesystem::exists(temporary)) files.remove_file(temporary);
  const base::UniqueFd fd = files.create(temporary);
  try {
    write_all(files, fd.get(), content.data(), content.size(), 0, temporary);
    files.sync(fd.get(), temporary);
    files.rename(temporary, path);
  } catch (const Error&) {
    try {
      files.remove_file(temporary);
    } catch (const Error&) {  // the first error says more, and the next call removes it
    }
    throw;
  }
  files.sync_folder(path.parent_path());
}

void remove_tree(FileSystem& files, const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> found;
  std::error_code error;
  for (std::filesystem::directory_iterator next(folder, error), end; !error && next != end;
       next.increment(error)) {
    found.push_back(next->path());
  }
  if (error) fail("read folder", folder, error.value());
  for (const std::filesystem::path& path : found) {
    if (std::filesystem::is_directory(std::filesystem::symlink_status(path))) {
      remove_tree(files, path);
    } else {
      files.remove_file(path);
    }
  }
  files.remove_folder(folder);
}

}  // namespace lockstep::checkpoint
