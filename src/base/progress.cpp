#include "base/progress.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <lockstep/error.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <new>
#include <optional>

#include "base/number.h"

namespace lockstep::base {
namespace {

constexpr char kName[] = "lockstep-progress";

int64_t now_ns() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1'000'000'000 + now.tv_nsec;
}

ProgressPage* map_page(int fd) {
  void* memory = ::mmap(nullptr, sizeof(ProgressPage), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  return memory == MAP_FAILED ? nullptr : static_cast<ProgressPage*>(memory);
}

// Checks the descriptor, because a program that a worker starts inherits the variable but not the
// descriptor.
bool is_page(int fd) {
  std::array<char, 64> target{};
  const std::string link = fmt::format("/proc/self/fd/{}", fd);
  struct stat status {};
  return ::readlink(link.c_str(), target.data(), target.size() - 1) > 0 &&
         std::string_view(target.data()).starts_with(std::string("/memfd:") + kName) &&
         ::fstat(fd, &status) == 0 && status.st_size == sizeof(ProgressPage);
}

}  // namespace

const char* to_string(Phase phase) {
  switch (phase) {
    case Phase::kStarting: return "starting";
    case Phase::kConnecting: return "connecting";
    case Phase::kRunning: return "running";
    case Phase::kData: return "data";
    case Phase::kForward: return "forward";
    case Phase::kBackward: return "backward";
    case Phase::kOptimizer: return "optimizer";
  }
  return "?";
}

Progress& Progress::of_process() {
  static Progress progress;
  return progress;
}

Progress::Progress() {
  const char* text = std::getenv("LOCKSTEP_PROGRESS_FD");
  const std::optional<int64_t> fd = text != nullptr ? parse_integer(text) : std::nullopt;
  if (!fd || *fd < 3 || *fd > 1 << 30 || !is_page(static_cast<int>(*fd))) return;
  ProgressPage* shared = map_page(static_cast<int>(*fd));
  if (shared == nullptr) return;
  ::fcntl(static_cast<int>(*fd), F_SETFD, FD_CLOEXEC);
  page_ = shared;
  changed();
  page_->magic = ProgressPage::kMagic;
}

void Progress::changed() { page_->changed_ns.store(now_ns(), std::memory_order_relaxed); }

void Progress::set_step(int64_t step) {
  page_->step.store(step, std::memory_order_relaxed);
  changed();
}

void Progress::set_phase(Phase phase) {
  page_->phase.store(static_cast<uint32_t>(phase), std::memory_order_relaxed);
  changed();
}

void Progress::collective_started(std::string_view operation) {
  std::array<uint64_t, 2> name{};
  std::memcpy(name.data(), operation.data(), std::min(operation.size(), sizeof name));
  for (size_t i = 0; i < name.size(); ++i) {
    page_->operation[i].store(name[i], std::memory_order_relaxed);
  }
  page_->collectives_started.fetch_add(1, std::memory_order_relaxed);
  changed();
}

void Progress::collective_finished() {
  page_->collectives_finished.fetch_add(1, std::memory_order_relaxed);
  changed();
}

ProgressWatch::ProgressWatch() : fd_(::memfd_create(kName, MFD_CLOEXEC)) {
  if (fd_ && ::ftruncate(fd_.get(), sizeof(ProgressPage)) == 0) page_ = map_page(fd_.get());
  if (page_ == nullptr) {
    throw ConfigError("base", fmt::format("cannot create the page that a worker reports its progress in: {}",
                                          std::strerror(errno)));
  }
  new (page_) ProgressPage;
}

ProgressWatch::~ProgressWatch() { ::munmap(page_, sizeof(ProgressPage)); }

ProgressWatch::Snapshot ProgressWatch::look() const {
  Snapshot snapshot;
  snapshot.reports = page_->magic == ProgressPage::kMagic;
  snapshot.phase = static_cast<Phase>(page_->phase.load());
  snapshot.step = page_->step;
  snapshot.collectives_finished = page_->collectives_finished;
  snapshot.collectives_started = page_->collectives_started;
  std::array<char, 17> name{};
  for (size_t i = 0; i < 2; ++i) {
    const uint64_t part = page_->operation[i];
    std::memcpy(name.data() + i * sizeof part, &part, sizeof part);
  }
  snapshot.operation = name.data();
  snapshot.idle_ns = std::max<int64_t>(0, now_ns() - page_->changed_ns);
  return snapshot;
}

}  // namespace lockstep::base
