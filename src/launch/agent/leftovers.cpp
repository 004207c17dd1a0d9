#include "launch/agent/leftovers.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <memory>
#include <optional>
#include <string_view>
#include <thread>

#include "base/number.h"
#include "base/unique_fd.h"

namespace lockstep::launcher {
namespace {

// One that cannot be killed now (it waits for a disk) is not waited for.
constexpr int kMaxRounds = 20;
constexpr std::chrono::milliseconds kPause{2};

// Entries are separated by zeros.
bool has_entry(std::string_view environment, std::string_view entry) {
  for (size_t at = environment.find(entry); at != std::string_view::npos;
       at = environment.find(entry, at + 1)) {
    if (at == 0 || environment[at - 1] == '\0') return true;
  }
  return false;
}

void read_environment(int proc, const char* pid, std::string& text) {
  text.clear();
  const base::UniqueFd fd(
      ::openat(proc, (std::string(pid) + "/environ").c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  std::array<char, 1 << 14> bytes;
  ssize_t got = 0;
  while (fd && (got = ::read(fd.get(), bytes.data(), bytes.size())) > 0) {
    text.append(bytes.data(), static_cast<size_t>(got));
  }
}

// How many there were.
int kill_round(const std::string& entry, const std::set<pid_t>& killed) {
  const std::unique_ptr<DIR, decltype(&::closedir)> folder(::opendir("/proc"), ::closedir);
  if (!folder) return 0;
  int count = 0;
  std::string environment;
  while (const dirent* item = ::readdir(folder.get())) {
    const std::optional<int64_t> pid = base::parse_integer(item->d_name);
    if (!pid || *pid == ::getpid() || killed.contains(static_cast<pid_t>(*pid))) continue;
    read_environment(::dirfd(folder.get()), item->d_name, environment);
    if (has_entry(environment, entry) && ::kill(static_cast<pid_t>(*pid), SIGKILL) == 0) ++count;
  }
  return count;
}

}  // namespace

void kill_leftovers(const std::string& entry, const std::set<pid_t>& killed) {
  for (int round = 0; round < kMaxRounds && kill_round(entry, killed) > 0; ++round) {
    std::this_thread::sleep_for(kPause);
  }
}

}  // namespace lockstep::launcher
