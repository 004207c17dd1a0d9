#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "base/unique_fd.h"

namespace lockstep::checkpoint {

// Everything by which a checkpoint changes the disk: one system call per function, so that a test can
// make each of them fail. All throw CheckpointError with the path and the reason. Several threads may
// call them.
class FileSystem {
 public:
  virtual ~FileSystem() = default;

  virtual base::UniqueFd create(const std::filesystem::path& path);
  // Reserves disk space. False: the file system cannot reserve. No space is an error.
  virtual bool allocate(int fd, int64_t bytes, const std::filesystem::path& path);
  // May write less than asked, as pwrite(2) does; never 0.
  virtual size_t write(int fd, const void* data, size_t bytes, int64_t offset,
                       const std::filesystem::path& path);
  // Starts to write these bytes to the disk, so that a later sync takes less time. A hint: never
  // fails.
  virtual void start_writing_back(int fd, int64_t offset, int64_t bytes);
  virtual void sync(int fd, const std::filesystem::path& path);
  virtual void sync_folder(const std::filesystem::path& path);
  virtual void make_folder(const std::filesystem::path& path);
  virtual void rename(const std::filesystem::path& from, const std::filesystem::path& to);
  virtual void remove_file(const std::filesystem::path& path);
  virtual void remove_folder(const std::filesystem::path& path);  // must be empty
  // The free space for an unprivileged writer.
  virtual int64_t free_bytes(const std::filesystem::path& folder);
};

// The file system of the machine. Has no state.
FileSystem& real_files();

// Repeats files.write() until all bytes are written.
void write_all(FileSystem& files, int fd, const void* data, size_t bytes, int64_t offset,
               const std::filesystem::path& path);

// base::publish_file by calls of a FileSystem: a reader sees the old content or all of the new
// content. If a call fails, the old file stays and the temporary file is removed.
void publish_file(FileSystem& files, const std::filesystem::path& path, std::string_view content);

// Removes a folder with its content.
void remove_tree(FileSystem& files, const std::filesystem::path& folder);

// Locks the file `lock` of a folder by flock(2), so that two runs never write into one folder. The
// kernel releases the lock when the process ends for any reason; the file stays.
class FolderLock {
 public:
  // ConfigError: another process holds the lock; the text has its host and number.
  explicit FolderLock(const std::filesystem::path& folder);

  // False: the file system has no locks, and a warning was logged. Other writers are then not noticed.
  bool held() const { return static_cast<bool>(fd_); }

 private:
  base::UniqueFd fd_;
};

}  // namespace lockstep::checkpoint
