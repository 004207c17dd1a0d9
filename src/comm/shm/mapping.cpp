#include "comm/shm/mapping.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <lockstep/error.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <system_error>
#include <utility>

namespace lockstep::comm::shm {
namespace {

[[noreturn]] void throw_no_memory(size_t bytes, int error) {
  throw CommError(
      "shm",
      fmt::format("cannot allocate {} bytes of shared memory: {}; free memory, or raise the limit of "
                  "the container or job",
                  bytes, std::strerror(error)),
      CommError::Recovery::kFatal);
}

std::byte* map_shared(int fd, size_t bytes) {
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
  return data == MAP_FAILED ? nullptr : static_cast<std::byte*>(data);
}

}  // namespace

Mapping Mapping::create(size_t bytes) {
  const int fd = memfd_create("lockstep", MFD_CLOEXEC);
  if (fd < 0) {
    throw_no_memory(bytes, errno);
  }
  Mapping mapping(fd, nullptr, bytes);
  if (const int error = posix_fallocate(fd, 0, static_cast<off_t>(bytes)); error != 0) {
    throw_no_memory(bytes, error);
  }
  mapping.data_ = map_shared(fd, bytes);
  if (mapping.data_ == nullptr) {
    throw_no_memory(bytes, errno);
  }
  return mapping;
}

Mapping Mapping::open(pid_t pid, int fd, size_t bytes) {
  const std::string path = fmt::format("/proc/{}/fd/{}", pid, fd);
  const int own_fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (own_fd < 0) {
    throw std::system_error(errno, std::generic_category(), path);
  }
  Mapping mapping(own_fd, nullptr, bytes);
  // Another file under that number would be a SIGBUS on first touch.
  struct stat status {};
  if (fstat(own_fd, &status) != 0 || static_cast<size_t>(status.st_size) != bytes) {
    throw std::system_error(ESTALE, std::generic_category(), path);
  }
  mapping.data_ = map_shared(own_fd, bytes);
  if (mapping.data_ == nullptr) {
    throw std::system_error(errno, std::generic_category(), path);
  }
  mapping.close_fd();
  return mapping;
}

Mapping::~Mapping() {
  if (data_ != nullptr) {
    munmap(data_, bytes_);
  }
  close_fd();
}

Mapping::Mapping(Mapping&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)),
      data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)) {}

void Mapping::release_pages() const {
  if (fd_ >= 0) {
    fallocate(fd_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, static_cast<off_t>(bytes_));
  }
}

void Mapping::close_fd() {
  if (fd_ >= 0) {
    close(std::exchange(fd_, -1));
  }
}

}  // namespace lockstep::comm::shm
