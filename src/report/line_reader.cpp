#include "report/line_reader.h"

#include <sys/types.h>

#include <cstring>

namespace lockstep::report {

LineReader::LineReader(const std::filesystem::path& path) {
  std::error_code error;
  // A pipe would block here for ever.
  if (std::filesystem::is_regular_file(path, error)) file_.reset(std::fopen(path.c_str(), "rbe"));
}

bool LineReader::read_line(std::string& line, bool& fits) {
  line.clear();
  fits = true;
  char part[4096];
  while (std::fgets(part, sizeof part, file_.get()) != nullptr) {
    // fgets does not tell how much it has read, and a foreign file may hold zeros: what
    // comes after one in a part is lost with it.
    const size_t size = std::strlen(part);
    const bool ended = size > 0 && part[size - 1] == '\n';
    fits = fits && line.size() + size <= kMaxLineBytes;
    if (fits) line.append(part, ended ? size - 1 : size);
    if (ended) return true;
  }
  return false;
}

bool LineReader::next(std::string& line) {
  bool fits = true;
  while (file_ != nullptr && read_line(line, fits)) {
    ++line_number_;
    if (fits) {
      if (line.ends_with('\r')) line.pop_back();
      return true;
    }
    ++too_long_;
  }
  ends_within_line_ = !line.empty() || !fits;
  return false;
}

void LineReader::seek(uint64_t offset_bytes) {
  if (file_ == nullptr) return;
  // The line that the byte before the offset ends or belongs to is not the one asked for.
  if (::fseeko(file_.get(), offset_bytes == 0 ? 0 : static_cast<off_t>(offset_bytes - 1), SEEK_SET) != 0)
    return;
  if (offset_bytes == 0) return;
  std::string rest;
  bool fits = true;
  read_line(rest, fits);
}

}  // namespace lockstep::report
