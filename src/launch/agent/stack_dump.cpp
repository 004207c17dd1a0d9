#include "launch/agent/stack_dump.h"

#include <fcntl.h>
#include <lockstep/error.h>
#include <sys/epoll.h>

#include <csignal>
#include <optional>

#include "base/program.h"

namespace lockstep::launcher {
namespace {

// gdb reads LibTorch's symbols first.
constexpr std::chrono::seconds kLimit{60};

}  // namespace

StackDump::StackDump(base::EventLoop& loop, Console& console, pid_t pid, const std::string& prefix)
    : loop_(loop) {
  base::ProcessOptions process;
  process.environment = base::Environment::of_process();
  const std::optional<std::string> gdb = base::find_program("gdb", process.environment);
  if (!gdb) return;
  StreamSinks sinks;
  sinks.console = &console;
  sinks.prefix = prefix;
  lines_ = std::make_unique<WorkerStream>(loop_, std::move(sinks));
  const base::UniqueFd nowhere(::open("/dev/null", O_WRONLY | O_CLOEXEC));
  process.program = *gdb;
  process.arguments = {*gdb,  "-nx",           "-batch", "-p",   std::to_string(pid),
                       "-ex", "set width 160", "-ex",    "bt 25"};
  process.stdout_fd = lines_->worker_fd();
  process.stderr_fd = nowhere.get();
  gdb_ = std::make_unique<base::ChildProcess>(base::ChildProcess::start(process));
  lines_->release_worker_fd();
  limit_ = loop_.after(kLimit, [this] { finish(); });
  if (gdb_->exit_fd() >= 0) {
    loop_.watch(gdb_->exit_fd(), EPOLLIN, [this](uint32_t) { finish(); });
  }
}

StackDump::~StackDump() { finish(); }

void StackDump::finish() {
  if (!gdb_) return;
  loop_.cancel(limit_);
  if (gdb_->exit_fd() >= 0) loop_.forget(gdb_->exit_fd());
  lines_->finish();
  gdb_.reset();
}

}  // namespace lockstep::launcher
