#include "checkpoint/async_writer.h"

#include <sys/resource.h>
#include <unistd.h>

#include <utility>

#include "base/log.h"

namespace lockstep::checkpoint {
namespace {

// Training has priority over the writer.
constexpr int kNiceness = 10;

// On Linux each thread has its own priority.
void lower_priority() { ::setpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()), kNiceness); }

}  // namespace

AsyncWriter::AsyncWriter(Store& store) : AsyncWriter([&store](const Snapshot& s) { return store.save(s); }) {}

AsyncWriter::AsyncWriter(Write write) : write_(std::move(write)), thread_([this] { run(); }) {}

AsyncWriter::~AsyncWriter() {
  {
    const base::MutexLock lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
  const base::MutexLock lock(mutex_);
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
  // The thread does not use copy_ and pending_ now: it waits for busy_.
  pending_ = copy_.copy(snapshot);
}

void AsyncWriter::start() {
  {
    const base::MutexLock lock(mutex_);
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
  const base::MutexLock lock(mutex_);
  return busy_ ? std::nullopt : take_result();
}

std::optional<Entry> AsyncWriter::wait() {
  base::MutexLock lock(mutex_);
  while (busy_) changed_.wait(lock);
  return take_result();
}

bool AsyncWriter::busy() const {
  const base::MutexLock lock(mutex_);
  return busy_;
}

std::optional<Entry> AsyncWriter::take_result() {
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
  return std::exchange(done_, std::nullopt);
}

void AsyncWriter::run() {
  lower_priority();
  base::MutexLock lock(mutex_);
  while (true) {
    while (!busy_ && !stop_) changed_.wait(lock);
    if (!busy_) return;
    lock.unlock();
    std::optional<Entry> done;
    std::exception_ptr error;
    try {
      done = write_(pending_);
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    done_ = std::move(done);
    error_ = std::move(error);
    busy_ = false;
    changed_.notify_all();
  }
}

}  // namespace lockstep::checkpoint
