#include "checkpoint/async_writer.h"

#include <sys/resource.h>
#include <unistd.h>

#include <utility>

#include "base/log.h"

namespace lockstep::checkpoint {
namespace {

// The training needs the CPU more than the writer does.
constexpr int kNiceness = 10;

// Linux counts priorities by thread.
void lower_priority() { ::setpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()), kNiceness); }

}  // namespace

AsyncWriter::AsyncWriter(Store& store) : AsyncWriter([&store](const Snapshot& s) { return store.save(s); }) {}

AsyncWriter::AsyncWriter(Write write) : write_(std::move(write)), thread_([this] { run(); }) {}

AsyncWriter::~AsyncWriter() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
  if (!error_) return;
  try {
    std::rethrow_exception(error_);
  } catch (const std::exception& error) {
    base::log_error("checkpoint", "step {} was not saved: {}", pending_.step, error.what());
  } catch (...) {
    base::log_error("checkpoint", "step {} was not saved", pending_.step);
  }
}

void AsyncWriter::save(const Snapshot& snapshot) {
  prepare(snapshot);
  start();
}

void AsyncWriter::prepare(const Snapshot& snapshot) {
  wait();
  // Nobody else touches copy_ and pending_ now: the thread waits for busy_.
  pending_ = copy_.copy(snapshot);
}

void AsyncWriter::start() {
  {
    const std::lock_guard lock(mutex_);
    done_.reset();
    busy_ = true;
  }
  changed_.notify_all();
}

Entry AsyncWriter::save_now(const Snapshot& snapshot) {
  wait();
  return write_(snapshot);
}

std::optional<Entry> AsyncWriter::poll() {
  const std::lock_guard lock(mutex_);
  return busy_ ? std::nullopt : take_result();
}

std::optional<Entry> AsyncWriter::wait() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return !busy_; });
  return take_result();
}

bool AsyncWriter::busy() const {
  const std::lock_guard lock(mutex_);
  return busy_;
}

std::optional<Entry> AsyncWriter::take_result() {
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
  return std::exchange(done_, std::nullopt);
}

void AsyncWriter::run() {
  lower_priority();
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return busy_ || stop_; });
    if (!busy_) return;
    lock.unlock();
    write(pending_);
    lock.lock();
    busy_ = false;
    changed_.notify_all();
  }
}

// Only the thread writes done_ and error_ while busy_; who reads them waits for that.
void AsyncWriter::write(const Snapshot& snapshot) noexcept {
  try {
    done_ = write_(snapshot);
  } catch (...) {
    error_ = std::current_exception();
  }
}

}  // namespace lockstep::checkpoint
