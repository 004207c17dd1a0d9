#include "base/mapped_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <lockstep/error.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>

#include "base/interrupted.h"
#include "base/unique_fd.h"

namespace lockstep::base {

MappedFile::MappedFile(std::filesystem::path path, std::string_view component) : path_(std::move(path)) {
  const auto fail = [&](const char* reason) {
    throw ConfigError(component, fmt::format("cannot read '{}': {}", path_.string(), reason));
  };
  // Not blocking: a pipe in the place of a file must not hang us.
  const UniqueFd fd(
      retry_interrupted([&] { return ::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK); }));
  struct stat state {};
  if (!fd || ::fstat(fd.get(), &state) != 0) fail(std::strerror(errno));
  if (!S_ISREG(state.st_mode)) fail("not a regular file");
  size_ = static_cast<size_t>(state.st_size);
  if (size_ == 0) return;
  void* memory = ::mmap(nullptr, size_, PROT_READ, MAP_SHARED, fd.get(), 0);
  if (memory == MAP_FAILED) fail(std::strerror(errno));
  data_ = static_cast<const uint8_t*>(memory);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<uint8_t*>(data_), size_);
}

}  // namespace lockstep::base
