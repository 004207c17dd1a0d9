#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "base/unique_fd.h"

namespace lockstep::track {

// A file that grows by whole records. A record is passed to the system at once, so that no
// record is lost when the process ends. A record that does not fit (full disk) is removed again,
// so that a reader never finds a part of one. All errors are ConfigErrors that name the path and
// the reason.
class OutputFile {
 public:
  // Opens the file for appending, and creates it if it does not exist.
  static OutputFile append_to(const std::filesystem::path& path);
  // Creates the file; nullopt: it exists already.
  static std::optional<OutputFile> create(const std::filesystem::path& path);

  void append(std::string_view record) { replace_from(size_, record); }
  // Replaces all bytes from offset on; offset is at most size().
  void replace_from(int64_t offset, std::string_view record);
  int64_t size() const { return size_; }
  void sync();
  // Some file systems report a full disk only here.
  void close();

 private:
  OutputFile(std::filesystem::path path, base::UniqueFd fd);
  [[noreturn]] void fail(const char* call) const;

  std::filesystem::path path_;
  base::UniqueFd fd_;
  int64_t size_ = 0;
};

// Creates the folder if it does not exist.
void make_folder(const std::filesystem::path& folder);
// The content of the file; empty if it does not exist.
std::string read_file(const std::filesystem::path& path);
// Renames the file of an earlier run to "metrics.1.csv", with the first free number. Does nothing
// if the file does not exist.
void rename_old_file(const std::filesystem::path& path);

}  // namespace lockstep::track
