// N launchers join one coordinator at once: the real protocol over real sockets on
// loopback. The coordinator has a process of its own, the launchers share the others.
//
//   rendezvous_storm LAUNCHERS [PROCESSES]
//
// Prints one line: seconds until all launchers have got their start, and until all
// have got the end; resident memory for each launcher on the coordinator's side and on
// the launcher's side.

#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "base/event_loop.h"
#include "base/job_token.h"
#include "base/network.h"
#include "base/unique_fd.h"
#include "launcher/rendezvous/coordinator_server.h"
#include "launcher/rendezvous/join.h"

namespace lockstep::launcher {
namespace {

using Clock = base::EventLoop::Clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

double resident_kib() {
  std::ifstream statm("/proc/self/statm");
  int64_t size = 0, resident = 0;
  statm >> size >> resident;
  return static_cast<double>(resident) * static_cast<double>(::sysconf(_SC_PAGESIZE)) / 1024;
}

void raise_open_files() {
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

// What a process of launchers reports to the parent.
struct Report {
  double seconds_to_start = 0;
  double seconds_to_end = 0;
  double kib_per_launcher = 0;
  int wrong = 0;
};

struct Storm;

struct SimulatedLauncher : MembershipListener {
  explicit SimulatedLauncher(Storm& the_storm) : storm(the_storm) {}
  uint16_t reserve_store_port(int) override { return 29500; }
  void start(const Generation& generation) override;
  void stop(int generation, const std::string&) override { membership->stopped(generation); }
  void note(const std::string&) override {}
  void stalled(int, const Stall&) override {}
  void finish(const JobOutcome& outcome) override;

  Storm& storm;
  std::unique_ptr<Membership> membership;
};

// The launchers of one process.
struct Storm {
  Storm(int the_first, int the_count, int the_total, const RendezvousOptions& options)
      : count(the_count), total(the_total), memory_before(resident_kib()) {
    for (int i = 0; i < count; ++i) {
      launchers.push_back(std::make_unique<SimulatedLauncher>(*this));
      NodeInfo node;
      node.host = fmt::format("node{:05}", the_first + i);
      node.local_world_size = 8;
      node.pid = ::getpid();
      launchers.back()->membership = join_remote(loop, node, options, *launchers.back());
    }
  }

  base::EventLoop loop;
  const int count;
  const int total;
  const double memory_before;
  const Clock::time_point begin = Clock::now();
  std::vector<std::unique_ptr<SimulatedLauncher>> launchers;
  int started = 0;
  int finished = 0;
  Report report;
};

void SimulatedLauncher::start(const Generation& generation) {
  if (static_cast<int>(generation.nodes.size()) != storm.total) ++storm.report.wrong;
  if (++storm.started == storm.count) {
    storm.report.seconds_to_start = seconds_since(storm.begin);
    storm.report.kib_per_launcher = (resident_kib() - storm.memory_before) / storm.count;
  }
  membership->succeeded(generation.number);
}

void SimulatedLauncher::finish(const JobOutcome& outcome) {
  if (outcome.kind != JobOutcome::Kind::kSuccess) {
    if (++storm.report.wrong == 1) fmt::print(stderr, "{}\n", outcome.reason);
  }
  if (++storm.finished < storm.count) return;
  storm.report.seconds_to_end = seconds_since(storm.begin);
  storm.loop.stop();
}

[[noreturn]] void run_launchers(int first, int count, int total, const RendezvousOptions& options,
                                int report_fd) {
  Storm storm(first, count, total, options);
  storm.loop.run();
  const bool written = ::write(report_fd, &storm.report, sizeof storm.report) == sizeof storm.report;
  ::_exit(written && storm.report.wrong == 0 ? 0 : 1);
}

[[noreturn]] void run_coordinator(base::ListenSocket socket, const RendezvousOptions& options,
                                  int report_fd) {
  base::EventLoop loop;
  const double before = resident_kib();
  const CoordinatorServer server(loop, std::move(socket), options, /*needs_host=*/false);
  double most = before;
  for (;;) {
    loop.run_once(std::chrono::milliseconds(20));
    most = std::max(most, resident_kib());
    const double kib = (most - before) / options.max_nodes;
    if (::pwrite(report_fd, &kib, sizeof kib, 0) != sizeof kib) ::_exit(1);
  }
}

int run(int launchers, int processes) {
  raise_open_files();
  RendezvousOptions options;
  options.token = base::make_token();
  options.min_nodes = options.max_nodes = launchers;
  // Thousands of launchers share one loop here: the silence of one means nothing.
  options.heartbeat_timeout = std::chrono::seconds(30);
  base::ListenSocket socket = base::listen_on("127.0.0.1", 0);
  options.port = socket.port;

  const base::UniqueFd coordinator_report(::memfd_create("report", 0));
  const pid_t coordinator = ::fork();
  if (coordinator == 0) run_coordinator(std::move(socket), options, coordinator_report.get());
  socket.fd.reset();

  std::vector<pid_t> children;
  int ends[2];
  if (::pipe(ends) != 0) return 1;
  for (int i = 0; i < processes; ++i) {
    const int first = launchers * i / processes;
    const int count = launchers * (i + 1) / processes - first;
    const pid_t child = ::fork();
    if (child == 0) run_launchers(first, count, launchers, options, ends[1]);
    children.push_back(child);
  }
  ::close(ends[1]);

  Report worst;
  int reports = 0;
  for (Report report; ::read(ends[0], &report, sizeof report) == sizeof report; ++reports) {
    worst.seconds_to_start = std::max(worst.seconds_to_start, report.seconds_to_start);
    worst.seconds_to_end = std::max(worst.seconds_to_end, report.seconds_to_end);
    worst.kib_per_launcher = std::max(worst.kib_per_launcher, report.kib_per_launcher);
    worst.wrong += report.wrong;
  }
  double coordinator_kib = 0;
  const bool read = ::pread(coordinator_report.get(), &coordinator_kib, sizeof coordinator_kib, 0) > 0;
  ::kill(coordinator, SIGKILL);
  ::waitpid(coordinator, nullptr, 0);
  for (const pid_t child : children) ::waitpid(child, nullptr, 0);
  fmt::print(R"({{"value": {:.3f}, "unit": "s", "launchers": {}, "seconds_to_end": {:.3f}, )"
             R"("coordinator_kib_per_launcher": {:.1f}, "launcher_kib": {:.1f}}})"
             "\n",
             worst.seconds_to_start, launchers, worst.seconds_to_end, coordinator_kib,
             worst.kib_per_launcher);
  return read && reports == processes && worst.wrong == 0 ? 0 : 1;
}

}  // namespace
}  // namespace lockstep::launcher

int main(int argc, char** argv) {
  if (argc < 2 || std::atoi(argv[1]) < 1) {
    fmt::print(stderr, "usage: rendezvous_storm LAUNCHERS [PROCESSES]\n");
    return 2;
  }
  const int launchers = std::atoi(argv[1]);
  const int processes = std::min(launchers, argc > 2 ? std::max(1, std::atoi(argv[2])) : 2);
  try {
    return lockstep::launcher::run(launchers, processes);
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
}
