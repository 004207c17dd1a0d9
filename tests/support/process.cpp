#include "support/process.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <system_error>
#include <utility>

namespace lockstep::test {
namespace {

using Clock = std::chrono::steady_clock;

[[noreturn]] void fail(int error, const std::string& what) {
  throw std::system_error(error, std::generic_category(), what);
}

struct Pipe {
  int read_end = -1;
  int write_end = -1;

  Pipe() {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) {
      fail(errno, "pipe2");
    }
    read_end = ends[0];
    write_end = ends[1];
  }
};

std::vector<std::string> changed_environment(const Process::EnvironmentChanges& changes) {
  std::vector<std::string> result;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    if (changes.count(text.substr(0, text.find('='))) == 0) {
      result.push_back(text);
    }
  }
  for (const auto& [name, value] : changes) {
    if (value) {
      result.push_back(name + "=" + *value);
    }
  }
  return result;
}

std::vector<char*> pointers_to(std::vector<std::string>& strings) {
  std::vector<char*> result;
  for (auto& string : strings) {
    result.push_back(string.data());
  }
  result.push_back(nullptr);
  return result;
}

int milliseconds_until(Clock::time_point deadline) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
  return left < 0 ? 0 : static_cast<int>(left);
}

}  // namespace

std::string program_path(const std::string& name) {
  const char* folder = std::getenv("LOCKSTEP_BIN_DIR");
  const std::filesystem::path bin = folder != nullptr
                                        ? std::filesystem::path(folder)
                                        : std::filesystem::read_symlink("/proc/self/exe").parent_path();
  return bin / name;
}

Process::Process(std::vector<std::string> arguments, const EnvironmentChanges& changes) {
  Pipe input, output, errors;
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, input.read_end, STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, output.write_end, STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, errors.write_end, STDERR_FILENO);
  auto environment = changed_environment(changes);
  const int error = posix_spawnp(&pid_, arguments.at(0).c_str(), &actions, nullptr,
                                 pointers_to(arguments).data(), pointers_to(environment).data());
  posix_spawn_file_actions_destroy(&actions);
  close(input.read_end);
  close(output.write_end);
  close(errors.write_end);
  input_fd_ = input.write_end;
  streams_[0].fd = output.read_end;
  streams_[1].fd = errors.read_end;
  if (error != 0) {
    close(input_fd_);
    close(streams_[0].fd);
    close(streams_[1].fd);
    fail(error, "cannot start " + arguments.at(0));
  }
  pid_fd_ = static_cast<int>(syscall(SYS_pidfd_open, pid_, 0));
}

Process::Process(Process&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)),
      pid_fd_(std::exchange(other.pid_fd_, -1)),
      input_fd_(std::exchange(other.input_fd_, -1)),
      next_line_(other.next_line_),
      status_(other.status_) {
  for (int i = 0; i < 2; ++i) {
    streams_[i].fd = std::exchange(other.streams_[i].fd, -1);
    streams_[i].text = std::move(other.streams_[i].text);
  }
}

Process::~Process() {
  if (pid_ > 0 && !status_) {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  for (int fd : {pid_fd_, input_fd_, streams_[0].fd, streams_[1].fd}) {
    if (fd >= 0) {
      close(fd);
    }
  }
}

void Process::signal(int number) {
  if (!status_) {
    kill(pid_, number);
  }
}

void Process::write_line(const std::string& line) {
  const std::string text = line + "\n";
  if (write(input_fd_, text.data(), text.size()) != static_cast<ssize_t>(text.size())) {
    fail(errno, "cannot write to the child");
  }
}

void Process::close_input() {
  if (input_fd_ >= 0) {
    close(std::exchange(input_fd_, -1));
  }
}

bool Process::read_from(Stream& stream) {
  char buffer[4096];
  const ssize_t n = read(stream.fd, buffer, sizeof buffer);
  if (n > 0) {
    stream.text.append(buffer, static_cast<size_t>(n));
    return true;
  }
  close(std::exchange(stream.fd, -1));
  return false;
}

bool Process::pump(Clock::time_point deadline) {
  pollfd polled[2] = {{streams_[0].fd, POLLIN, 0}, {streams_[1].fd, POLLIN, 0}};
  if (streams_[0].fd < 0 && streams_[1].fd < 0) {
    return false;
  }
  if (poll(polled, 2, milliseconds_until(deadline)) <= 0) {
    return false;
  }
  for (int i = 0; i < 2; ++i) {
    if (polled[i].revents != 0) {
      read_from(streams_[i]);
    }
  }
  return true;
}

std::optional<std::string> Process::read_line(Milliseconds timeout) {
  const auto deadline = Clock::now() + timeout;
  while (true) {
    const std::string& text = streams_[0].text;
    const size_t end = text.find('\n', next_line_);
    if (end != std::string::npos) {
      const size_t begin = std::exchange(next_line_, end + 1);
      return text.substr(begin, end - begin);
    }
    if (streams_[0].fd < 0 || !pump(deadline)) {
      return std::nullopt;
    }
  }
}

std::optional<ExitStatus> Process::wait(Milliseconds timeout) {
  const auto deadline = Clock::now() + timeout;
  while (pump(deadline)) {
  }
  if (!status_) {
    pollfd ended{pid_fd_, POLLIN, 0};
    if (poll(&ended, 1, milliseconds_until(deadline)) <= 0) {
      return std::nullopt;
    }
    int raw = 0;
    waitpid(pid_, &raw, 0);
    status_ = WIFSIGNALED(raw) ? ExitStatus{-1, WTERMSIG(raw)} : ExitStatus{WEXITSTATUS(raw), 0};
  }
  return status_;
}

Finished finish(Process& process, std::chrono::milliseconds timeout) {
  const auto status = process.wait(timeout);
  EXPECT_TRUE(status) << "no end: " << process.output() << process.errors();
  return {status ? status->code : -1, process.output(), process.errors()};
}

}  // namespace lockstep::test
