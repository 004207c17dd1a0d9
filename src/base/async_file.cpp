#include "base/async_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <lockstep/error.h>
#include <stdlib.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/check.h"
#include "base/log.h"

namespace lockstep::base {

namespace {

constexpr mode_t kOwnerOnly = 0600;

[[noreturn]] void fail(const std::filesystem::path& folder, const std::string& what) {
  throw ConfigError(
      "offload", fmt::format("a file for offloaded state cannot be made in '{}': {}", folder.string(), what));
}

// Without a name from the start, or with one for a moment where the file system cannot.
int open_unnamed(const std::filesystem::path& folder) {
  const int fd = ::open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, kOwnerOnly);
  if (fd >= 0 || (errno != EOPNOTSUPP && errno != EISDIR && errno != EINVAL)) return fd;
  std::string name = folder / ".lockstep-offload-XXXXXX";
  const int named = ::mkostemp(name.data(), O_CLOEXEC);
  if (named >= 0) ::unlink(name.c_str());
  return named;
}

}  // namespace

AsyncFile::AsyncFile(const std::filesystem::path& folder, int64_t bytes, const BlockIoOptions& options)
    : folder_(folder), bytes_(bytes) {
  check_eq(bytes % kAlignment, int64_t{0}, "bytes of an offloaded file beyond whole blocks");
  open(bytes);
  make_io(options);
  worker_ = std::thread([this] { run(); });
}

AsyncFile::~AsyncFile() {
  {
    const std::lock_guard lock(mutex_);
    stops_ = true;
  }
  changed_.notify_all();
  worker_.join();
}

void AsyncFile::open(int64_t bytes) {
  std::error_code ignored;
  if (!std::filesystem::is_directory(folder_, ignored)) {
    fail(folder_, "it is not a folder; make it, or set nvme_path to one that every rank of this host has");
  }
  fd_.reset(open_unnamed(folder_));
  if (!fd_) fail(folder_, std::strerror(errno));
  reserve(bytes);
  is_direct_ = ::fcntl(fd_.get(), F_SETFL, O_DIRECT) == 0;
  if (!is_direct_) {
    log_info("offload", "the file system of '{}' has no direct access: state goes through the page cache",
             folder_.string());
  }
}

void AsyncFile::reserve(int64_t bytes) {
  if (bytes == 0) return;
  // Where the file system cannot reserve, the C library writes.
  const int error = ::posix_fallocate(fd_.get(), 0, bytes);
  if (error == 0) return;
  struct statvfs state {};
  const bool known = ::fstatvfs(fd_.get(), &state) == 0;
  const uint64_t left = known ? static_cast<uint64_t>(state.f_bavail) * state.f_frsize : 0;
  fail(folder_,
       fmt::format("this rank needs {} bytes, and {} are free: {}", bytes, left, std::strerror(error)));
}

void AsyncFile::make_io(const BlockIoOptions& options) {
  int error = 0;
  io_ = make_uring_io(fd_.get(), options, error);
  uses_uring_ = io_ != nullptr;
  if (uses_uring_) return;
  log_warning("offload",
              "io_uring is not available here ({}), so that offloaded state is read and written by one block "
              "at a time; allow it in the container's seccomp profile, or set "
              "/proc/sys/kernel/io_uring_disabled to 0",
              std::strerror(error));
  io_ = make_plain_io(fd_.get(), options);
}

AsyncFile::Ticket AsyncFile::read(void* memory, int64_t offset, int64_t bytes) {
  return start({0, BlockIo::Direction::kRead, memory, offset, bytes});
}

AsyncFile::Ticket AsyncFile::write(const void* memory, int64_t offset, int64_t bytes) {
  return start({0, BlockIo::Direction::kWrite, const_cast<void*>(memory), offset, bytes});
}

AsyncFile::Ticket AsyncFile::start(Request request) {
  const auto address = static_cast<int64_t>(reinterpret_cast<uintptr_t>(request.memory));
  check_eq((address | request.offset | request.bytes) % kAlignment, int64_t{0},
           "a transfer that is not of whole blocks");
  check(request.offset >= 0 && request.offset + request.bytes <= bytes_, "a transfer outside of its file");
  {
    const std::lock_guard lock(mutex_);
    request.ticket = ++last_started_;
    queue_.push_back(request);
  }
  changed_.notify_all();
  return request.ticket;
}

void AsyncFile::wait(Ticket ticket) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return last_done_ >= ticket; });
  const auto failure = failures_.lower_bound({ticket, ""});
  if (failure != failures_.end() && failure->first == ticket) {
    throw InternalError("offload", failure->second);
  }
}

void AsyncFile::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return stops_ || !queue_.empty(); });
    if (queue_.empty()) return;
    const Request request = queue_.front();
    queue_.pop_front();
    lock.unlock();
    const int error = io_->move(request.direction, request.memory, request.offset, request.bytes);
    lock.lock();
    if (error != 0) {
      const bool is_read = request.direction == BlockIo::Direction::kRead;
      failures_.emplace(
          request.ticket,
          fmt::format("offloaded state cannot be {} '{}': {} bytes at {}: {}",
                      is_read ? "read from" : "written to", folder_.string(), request.bytes, request.offset,
                      error == ENODATA ? "the file ends before them" : std::strerror(error)));
    }
    last_done_ = request.ticket;
    changed_.notify_all();
  }
}

}  // namespace lockstep::base
