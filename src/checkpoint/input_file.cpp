#include "checkpoint/input_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

#include "base/interrupted.h"
#include "checkpoint/checksum.h"
#include "checkpoint/error.h"

namespace lockstep::checkpoint {
namespace {

// Summed up while it is in the cache.
constexpr int64_t kReadBytes = 1 << 20;

[[noreturn]] void fail(const std::filesystem::path& path, const char* reason) {
  throw CheckpointError(fmt::format("cannot read '{}': {}", path.string(), reason));
}

// New memory has no pages yet. One call for all of them costs a quarter less than a fault
// for each; a kernel that does not know it leaves the faults.
void touch_pages(char* memory, int64_t bytes) {
  static const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const uintptr_t begin = (reinterpret_cast<uintptr_t>(memory) + page - 1) / page * page;
  const uintptr_t end = (reinterpret_cast<uintptr_t>(memory) + static_cast<uintptr_t>(bytes)) / page * page;
  if (end > begin) ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_POPULATE_WRITE);
}

}  // namespace

// Not blocking: a pipe in the place of a file must not hang us.
InputFile::InputFile(std::filesystem::path path)
    : path_(std::move(path)),
      fd_(base::retry_interrupted([&] { return ::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK); })) {
  struct stat state {};
  if (!fd_ || ::fstat(fd_.get(), &state) != 0) fail(path_, std::strerror(errno));
  if (!S_ISREG(state.st_mode)) fail(path_, "not a regular file");
  bytes_ = state.st_size;
}

void InputFile::read(void* to, int64_t bytes, int64_t offset) const {
  char* next = static_cast<char*>(to);
  while (bytes > 0) {
    const ssize_t got = ::pread(fd_.get(), next, static_cast<size_t>(bytes), offset);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail(path_, std::strerror(errno));
    if (got == 0) fail(path_, "it became shorter");
    next += got;
    bytes -= got;
    offset += got;
  }
}

std::string InputFile::read_and_sum(void* to, int64_t bytes, int64_t offset) const {
  Checksum checksum;
  char* next = static_cast<char*>(to);
  while (bytes > 0) {
    const int64_t chunk = std::min(bytes, kReadBytes);
    touch_pages(next, chunk);
    read(next, chunk, offset);
    checksum.update(next, static_cast<size_t>(chunk));
    next += chunk;
    offset += chunk;
    bytes -= chunk;
  }
  return checksum.hex();
}

std::string InputFile::sum(int64_t bytes, int64_t offset) const {
  Checksum checksum;
  std::vector<char> buffer(static_cast<size_t>(std::min(bytes, kReadBytes)));
  for (int64_t done = 0; done < bytes; done += kReadBytes) {
    const int64_t chunk = std::min(bytes - done, kReadBytes);
    read(buffer.data(), chunk, offset + done);
    checksum.update(buffer.data(), static_cast<size_t>(chunk));
  }
  return checksum.hex();
}

}  // namespace lockstep::checkpoint
