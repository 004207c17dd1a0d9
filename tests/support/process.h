#pragma once

#include <sys/types.h>

#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace lockstep::test {

// The path of a program that the build made: "lockstep", "sine", or "test/NAME"
// for tests/process/programs/NAME.cpp.
std::string program_path(const std::string& name);

// For processes that use MPI: OpenMPI never frees much of what it makes, in modules
// that are unloaded by the time leaks are looked for, so they cannot be told from ours.
inline constexpr std::pair<const char*, const char*> kExcuseMpiLeaks{"LSAN_OPTIONS", "detect_leaks=0"};

struct ExitStatus {
  int code = -1;   // valid when signal is 0
  int signal = 0;  // the signal that ended it, or 0
  bool operator==(const ExitStatus&) const = default;
};

// A child process with pipes on its standard streams. The destructor kills it by
// its pid if it still runs, and reaps it: no test leaves a process behind.
// One thread at a time.
class Process {
 public:
  using Milliseconds = std::chrono::milliseconds;
  // Added to this process's environment; an empty optional removes a variable.
  using EnvironmentChanges = std::map<std::string, std::optional<std::string>>;

  // Starts arguments[0] (a path, or a name that PATH finds). Throws
  // std::system_error when that is impossible.
  explicit Process(std::vector<std::string> arguments, const EnvironmentChanges& changes = {});
  ~Process();
  Process(Process&& other) noexcept;
  Process& operator=(Process&&) = delete;

  pid_t pid() const { return pid_; }
  // Sends a signal; nothing happens when the child has ended and was reaped.
  void signal(int number);
  void write_line(const std::string& line);
  void close_input();
  // The next line of standard output without its end of line. Empty optional:
  // the output ended or the time is up.
  std::optional<std::string> read_line(Milliseconds timeout);
  // Reads both outputs until the child ends. Empty optional: the time is up.
  std::optional<ExitStatus> wait(Milliseconds timeout);

  // All that was read so far (lines that read_line handed out included).
  const std::string& output() const { return streams_[0].text; }
  const std::string& errors() const { return streams_[1].text; }

 private:
  struct Stream {
    int fd = -1;
    std::string text;
  };

  // Reads what there is, waiting for some at most until the deadline. False: the
  // deadline passed, or nothing more can come.
  bool pump(std::chrono::steady_clock::time_point deadline);
  bool read_from(Stream& stream);

  pid_t pid_ = -1;
  int pid_fd_ = -1;
  int input_fd_ = -1;
  Stream streams_[2];  // standard output, standard error
  size_t next_line_ = 0;
  std::optional<ExitStatus> status_;
};

// A program that has ended.
struct Finished {
  int code = -1;  // -1: by a signal, or not at all, which is a failure of the test
  std::string output;
  std::string errors;
};
Finished finish(Process& process, std::chrono::milliseconds timeout);

}  // namespace lockstep::test
