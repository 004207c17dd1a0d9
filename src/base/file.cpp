#include "base/file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <lockstep/error.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>

namespace lockstep::base {
namespace {

// Removes the temporary file unless it was renamed.
class TemporaryFile {
 public:
  explicit TemporaryFile(std::string path) : path_(std::move(path)) {}
  ~TemporaryFile() {
    if (!path_.empty()) ::unlink(path_.c_str());
  }
  const std::string& path() const { return path_; }
  void keep() { path_.clear(); }

 private:
  std::string path_;
};

[[noreturn]] void fail_write(const std::filesystem::path& path, const char* call) {
  throw ConfigError("file",
                    fmt::format("cannot write '{}': {}: {}", path.string(), call, std::strerror(errno)));
}

void write_all(int fd, std::string_view content, const std::filesystem::path& path) {
  while (!content.empty()) {
    const ssize_t written = retry_interrupted([&] { return ::write(fd, content.data(), content.size()); });
    if (written < 0) fail_write(path, "write");
    content.remove_prefix(static_cast<size_t>(written));
  }
}

void sync_folder(const std::filesystem::path& folder) {
  const char* path = folder.empty() ? "." : folder.c_str();
  const UniqueFd fd(retry_interrupted([&] { return ::open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC); }));
  if (fd) retry_interrupted([&] { return ::fsync(fd.get()); });
}

}  // namespace

FileFault cannot_read(std::string_view component) {
  return [component = std::string(component)](const std::filesystem::path& path, const std::string& reason) {
    throw ConfigError(component, fmt::format("cannot read '{}': {}", path.string(), reason));
  };
}

// O_NONBLOCK: opening a pipe must not wait for its writer.
InputFile::InputFile(std::filesystem::path path, FileFault fault)
    : path_(std::move(path)),
      fault_(std::move(fault)),
      fd_(retry_interrupted([&] { return ::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK); })) {
  struct stat state {};
  if (!fd_ || ::fstat(fd_.get(), &state) != 0) fail(std::strerror(errno));
  if (!S_ISREG(state.st_mode)) fail("not a regular file");
  bytes_ = state.st_size;
}

void InputFile::read(void* to, int64_t bytes, int64_t offset) const {
  const auto wanted = static_cast<size_t>(bytes);
  if (fill(to, wanted, offset) < wanted) fail("it became shorter");
}

size_t InputFile::read_some(void* to, size_t bytes, uint64_t offset) const {
  const auto size = static_cast<uint64_t>(bytes_);
  if (offset >= size) return 0;
  return fill(to, std::min<uint64_t>(bytes, size - offset), static_cast<off_t>(offset));
}

std::string InputFile::read_some(size_t bytes, uint64_t offset) const {
  const auto size = static_cast<uint64_t>(bytes_);
  std::string text(offset < size ? std::min<uint64_t>(bytes, size - offset) : 0, '\0');
  text.resize(read_some(text.data(), text.size(), offset));
  return text;
}

size_t InputFile::fill(void* to, size_t bytes, off_t offset) const {
  size_t done = 0;
  while (done < bytes) {
    const ssize_t got = retry_interrupted([&] {
      return ::pread(fd_.get(), static_cast<char*>(to) + done, bytes - done,
                     offset + static_cast<off_t>(done));
    });
    if (got < 0) fail(std::strerror(errno));
    if (got == 0) break;
    done += static_cast<size_t>(got);
  }
  return done;
}

void InputFile::fail(const std::string& reason) const {
  fault_(path_, reason);
  throw InternalError("internal", "a FileFault returned");
}

MappedFile::MappedFile(std::filesystem::path path, std::string_view component) : path_(std::move(path)) {
  const InputFile file(path_, cannot_read(component));
  size_ = static_cast<size_t>(file.bytes());
  if (size_ == 0) return;
  void* memory = ::mmap(nullptr, size_, PROT_READ, MAP_SHARED, file.fd(), 0);
  if (memory == MAP_FAILED) cannot_read(component)(path_, std::strerror(errno));
  data_ = static_cast<const uint8_t*>(memory);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<uint8_t*>(data_), size_);
}

std::optional<std::string> read_whole_file(const std::filesystem::path& path, size_t limit) {
  const UniqueFd fd(retry_interrupted([&] { return ::open(path.c_str(), O_RDONLY | O_CLOEXEC); }));
  if (!fd) return std::nullopt;
  std::string content;
  std::array<char, 1 << 16> buffer;
  while (content.size() < limit) {
    const size_t wanted = std::min(buffer.size(), limit - content.size());
    const ssize_t got = retry_interrupted([&] { return ::read(fd.get(), buffer.data(), wanted); });
    if (got < 0) return std::nullopt;
    if (got == 0) break;
    content.append(buffer.data(), static_cast<size_t>(got));
  }
  return content;
}

std::optional<std::string> read_first_line(const std::filesystem::path& path) {
  std::optional<std::string> text = read_whole_file(path);
  if (!text || text->empty()) return std::nullopt;
  text->resize(std::min(text->size(), text->find('\n')));
  return text;
}

void publish_file(const std::filesystem::path& path, std::string_view content, mode_t mode) {
  publish_file(
      path, [&](const Append& append) { append(content); }, mode);
}

void publish_file(const std::filesystem::path& path, const std::function<void(const Append&)>& write,
                  mode_t mode) {
  TemporaryFile temporary(fmt::format("{}.{}.tmp", path.string(), ::getpid()));
  UniqueFd fd(retry_interrupted(
      [&] { return ::open(temporary.path().c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, mode); }));
  if (!fd) fail_write(path, "open");
  write([&](std::string_view part) { write_all(fd.get(), part, path); });
  if (retry_interrupted([&] { return ::fsync(fd.get()); }) != 0) fail_write(path, "fsync");
  fd.reset();
  if (::rename(temporary.path().c_str(), path.c_str()) != 0) fail_write(path, "rename");
  temporary.keep();
  sync_folder(path.parent_path());
}

}  // namespace lockstep::base
