#include "base/program.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <lockstep/error.h>
#include <poll.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "base/pipe.h"

namespace lockstep::base {
namespace {

using Clock = std::chrono::steady_clock;

// Appends what there is; false at the end of the stream.
bool read_some(int fd, std::string& text) {
  char buffer[4096];
  const ssize_t got = ::read(fd, buffer, sizeof buffer);
  if (got < 0) return errno == EINTR;
  text.append(buffer, static_cast<size_t>(got));
  return got > 0;
}

// Also with no time left, so that what has happened by then is seen.
void wait_for(pollfd* fds, nfds_t count, Clock::time_point deadline) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
  ::poll(fds, count, static_cast<int>(std::max<int64_t>(left, 0)));
}

// Where the kernel has no pidfd to wait on.
constexpr std::chrono::milliseconds kPollPeriod{10};

bool read_until(Clock::time_point deadline, ChildProcess& child, std::array<Pipe, 2>& pipes,
                std::array<std::string*, 2> texts) {
  std::array<pollfd, 3> fds{{{pipes[0].read_end.get(), POLLIN, 0},
                             {pipes[1].read_end.get(), POLLIN, 0},
                             {child.exit_fd(), POLLIN, 0}}};
  while (true) {
    // Looked at before the streams: what an ended process has written is in them.
    bool has_ended = false;
    if (child.exit_fd() < 0) {
      has_ended = child.poll_exit();
      const auto next_look = Clock::now() + (has_ended ? std::chrono::milliseconds(0) : kPollPeriod);
      wait_for(fds.data(), fds.size(), std::min(deadline, next_look));
    } else {
      wait_for(fds.data(), fds.size(), deadline);
      has_ended = fds[2].revents != 0;
    }
    bool read = false;
    for (size_t i = 0; i < 2; ++i) {
      if (fds[i].revents == 0) continue;
      read = true;
      if (!read_some(fds[i].fd, *texts[i])) fds[i].fd = -1;
    }
    // The process may leave a child behind that keeps the streams open: its own end
    // counts, once nothing is left to read.
    if (!read && has_ended) return true;
    if (!read && Clock::now() >= deadline) return false;
  }
}

}  // namespace

std::optional<std::string> find_program(std::string_view name, const Environment& environment) {
  const std::string path = environment.get("PATH").value_or("/usr/local/bin:/usr/bin:/bin");
  for (size_t begin = 0; begin <= path.size();) {
    const size_t end = std::min(path.find(':', begin), path.size());
    const std::string folder = end > begin ? path.substr(begin, end - begin) : ".";
    std::string candidate = fmt::format("{}/{}", folder, name);
    if (::access(candidate.c_str(), X_OK) == 0) return candidate;
    begin = end + 1;
  }
  return std::nullopt;
}

std::optional<ProgramResult> run_program(ProcessOptions options, std::chrono::milliseconds timeout) {
  const Clock::time_point deadline = Clock::now() + timeout;
  std::array<Pipe, 2> pipes{make_pipe(), make_pipe()};
  options.stdout_fd = pipes[0].write_end.get();
  options.stderr_fd = pipes[1].write_end.get();
  ChildProcess child = ChildProcess::start(options);
  for (Pipe& pipe : pipes) pipe.write_end.reset();
  ProgramResult result;
  if (!read_until(deadline, child, pipes, {&result.output, &result.errors})) return std::nullopt;
  child.poll_exit();
  result.state = child.exit_state();
  return result;
}

}  // namespace lockstep::base
