#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string_view>

namespace lockstep::base {

// A regular file as read-only memory. All processes of a node that map a file share one
// copy of it. Pages come from the disk when they are first read; a file that is cut while
// it is mapped ends the process with SIGBUS, so what others may write to is not mapped.
// Any number of threads may read.
class MappedFile {
 public:
  // ConfigError of the component: the file cannot be opened, or is none.
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

}  // namespace lockstep::base
