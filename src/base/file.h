#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/unique_fd.h"

namespace lockstep::base {

// --- reading ---

// Throws the error type that the reading layer promises, with the path and the reason in its text.
// Must not return.
using FileFault = std::function<void(const std::filesystem::path& path, const std::string& reason)>;

// A fault that throws ConfigError "[component] cannot read 'path': reason".
FileFault cannot_read(std::string_view component);

// A regular file that is read at any offset. A path that is missing, cannot be opened or is not a
// regular file is a fault; so is a read that fails. Opening does not block on a pipe. Threads may
// read at the same time.
class InputFile {
 public:
  InputFile(std::filesystem::path path, FileFault fault);

  const std::filesystem::path& path() const { return path_; }
  int fd() const { return fd_.get(); }
  // The size at the time of opening.
  int64_t bytes() const { return bytes_; }

  // Reads exactly `bytes`. A fault if the file has become shorter.
  void read(void* to, int64_t bytes, int64_t offset) const;
  // Reads at most `bytes` and returns how many there were: fewer at the end of the file, 0 from
  // there on.
  size_t read_some(void* to, size_t bytes, uint64_t offset) const;
  std::string read_some(size_t bytes, uint64_t offset) const;

 private:
  size_t fill(void* to, size_t bytes, off_t offset) const;
  [[noreturn]] void fail(const std::string& reason) const;

  std::filesystem::path path_;
  FileFault fault_;
  UniqueFd fd_;
  int64_t bytes_ = 0;
};

// A regular file as read-only memory. All processes of a node that map a file share one copy of it.
// Pages are loaded when they are first read. A file that is truncated while it is mapped ends the
// process with SIGBUS: do not map files that others may write to. Threads may read at the same time.
class MappedFile {
 public:
  // ConfigError of the component: the path cannot be opened, or is not a regular file.
  MappedFile(std::filesystem::path path, std::string_view component);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::span<const uint8_t> bytes() const { return {data_, size_}; }

 private:
  std::filesystem::path path_;
  const uint8_t* data_ = nullptr;  // null for an empty file
  size_t size_ = 0;
};

// The content of any file, /proc and pipes included; only its first `limit` bytes if it has more.
// nullopt: it cannot be opened or read, and errno has the reason. std::ifstream does not report
// reasons: it treats a read error as the end of the file.
std::optional<std::string> read_whole_file(const std::filesystem::path& path, size_t limit = SIZE_MAX);

// The first line of a small file, as of /proc and /sys, without its end. nullopt: the file is empty
// or cannot be read.
std::optional<std::string> read_first_line(const std::filesystem::path& path);

// --- writing ---

// Publishes a file: a reader sees the old content or all of the new content, even after a crash. The
// content is written to a temporary file in the same folder, synced, and renamed. ConfigError names
// the path and the reason (full disk, no permission); the old file is then unchanged. mode: the
// permissions of a new file, reduced by the process's umask.
void publish_file(const std::filesystem::path& path, std::string_view content, mode_t mode = 0644);

// The same for content that is produced in parts: `write` passes them to its argument in order. If it
// throws, the old file is unchanged.
using Append = std::function<void(std::string_view part)>;
void publish_file(const std::filesystem::path& path, const std::function<void(const Append&)>& write,
                  mode_t mode = 0644);

}  // namespace lockstep::base
