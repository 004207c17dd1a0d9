#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "base/unique_fd.h"

namespace lockstep::track {

// A file that grows by whole records. A record is handed to the system at once, so that
// the end of the process loses none; one that cannot be written whole (full disk) is
// taken back, so that a reader never meets a part of one. Errors are ConfigErrors that
// name the path and the reason.
class OutputFile {
 public:
  // Opens for writing at the end; makes the file when it is not there.
  static OutputFile append_to(const std::filesystem::path& path);
  // Makes the file; nullopt when there is one of this name.
  static std::optional<OutputFile> create(const std::filesystem::path& path);

  void append(std::string_view record) { replace_from(size_, record); }
  // Replaces all bytes from offset on; offset is at most size().
  void replace_from(int64_t offset, std::string_view record);
  int64_t size() const { return size_; }
  void sync();
  // Some file systems tell only here that there was no space.
  void close();

 private:
  OutputFile(std::filesystem::path path, base::UniqueFd fd);
  [[noreturn]] void fail(const char* call) const;

  std::filesystem::path path_;
  base::UniqueFd fd_;
  int64_t size_ = 0;
};

// The folder, made where it is missing.
void make_folder(const std::filesystem::path& folder);
// The whole file; empty when there is none.
std::string read_file(const std::filesystem::path& path);
// Gives a file of an earlier run another name, "metrics.1.csv": the first free number.
// No-op when there is none.
void set_aside(const std::filesystem::path& path);

}  // namespace lockstep::track
