#pragma once

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>

namespace lockstep::report {

// The lines of a file that may be anything: another program's, cut off, without a line
// break in gigabytes. Memory stays bounded by the longest line that is taken.
class LineReader {
 public:
  static constexpr size_t kMaxLineBytes = 1 << 20;

  // A path that is no readable regular file has no lines.
  explicit LineReader(const std::filesystem::path& path);

  bool is_open() const { return file_ != nullptr; }
  // The next whole line, without its end; false at the end of the file. A line that is
  // too long is passed over and counted.
  bool next(std::string& line);
  // Goes on with the first line that begins after this offset.
  void seek(uint64_t offset_bytes);

  // The number of the line that next() returned, from 1; after a seek it means nothing.
  int64_t line_number() const { return line_number_; }
  int64_t too_long() const { return too_long_; }
  // After the end: whether bytes without a line's end were left. They were being written
  // when the writer died, or were cut off.
  bool ends_within_line() const { return ends_within_line_; }

 private:
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };

  // Reads to the line's end; false where the file ends before it.
  bool read_line(std::string& line, bool& fits);

  std::unique_ptr<std::FILE, Close> file_;
  int64_t line_number_ = 0;
  int64_t too_long_ = 0;
  bool ends_within_line_ = false;
};

}  // namespace lockstep::report
