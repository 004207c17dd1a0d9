#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "base/unique_fd.h"

namespace lockstep::checkpoint {

// Every call by which a checkpoint changes the disk, one changing system call each, so that
// a test can fail or stop any of them. All throw CheckpointError with the path and the
// reason. Called from several threads.
class FileSystem {
 public:
  virtual ~FileSystem() = default;

  virtual base::UniqueFd create(const std::filesystem::path& path);
  // Reserves disk space; false where the file system cannot. No space is an error.
  virtual bool allocate(int fd, int64_t bytes, const std::filesystem::path& path);
  // May write less than asked, as pwrite(2) does; never 0.
  virtual size_t write(int fd, const void* data, size_t bytes, int64_t offset,
                       const std::filesystem::path& path);
  // Lets the disk begin with these bytes, so that a later sync has less to wait for. Only a
  // hint: never fails.
  virtual void start_writing_back(int fd, int64_t offset, int64_t bytes);
  virtual void sync(int fd, const std::filesystem::path& path);
  virtual void sync_folder(const std::filesystem::path& path);
  virtual void make_folder(const std::filesystem::path& path);
  virtual void rename(const std::filesystem::path& from, const std::filesystem::path& to);
  virtual void remove_file(const std::filesystem::path& path);
  virtual void remove_folder(const std::filesystem::path& path);  // an empty one
  // What an unprivileged writer may still use there.
  virtual int64_t free_bytes(const std::filesystem::path& folder);
};

// The machine's own. Has no state.
FileSystem& real_files();

// Writes all of it, through as many calls as that takes.
void write_all(FileSystem& files, int fd, const void* data, size_t bytes, int64_t offset,
               const std::filesystem::path& path);

// Publishes a small file so that a reader sees the old content or all of the new one: what
// base::publish_file does, by calls that a test can stop one by one. When one of them fails
// the old file stays, and what was written beside it is removed.
void publish_file(FileSystem& files, const std::filesystem::path& path, std::string_view content);

// Removes a folder and what is in it.
void remove_tree(FileSystem& files, const std::filesystem::path& folder);

}  // namespace lockstep::checkpoint
