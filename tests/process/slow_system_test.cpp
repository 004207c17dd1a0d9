// `lockstep run` on a system that is slow or hostile: a file system that does not answer, ranks
// that cannot be killed, strangers that use up descriptors, names that nobody knows.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/error.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <optional>
#include <thread>
#include <utility>

#include "base/network.h"
#include "base/unique_fd.h"
#include "support/held_calls.h"
#include "support/process.h"
#include "support/temporary_folder.h"

namespace lockstep::test {
namespace {

using std::chrono::seconds;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

// Reached only by a test that fails.
constexpr seconds kSlowBound{60};

class SlowSystemTest : public testing::Test {
 protected:
  // Of this machine; nobody listens on it.
  static int free_port() { return base::listen_on("127.0.0.1", 0).port; }

  Process start(std::vector<std::string> arguments, Process::EnvironmentChanges changes = {}) {
    arguments.insert(arguments.begin(), {program_path("lockstep"), "run"});
    changes["TMPDIR"] = folder_.path();
    return Process(std::move(arguments), changes);
  }
  std::vector<std::string> node(int rank, int port, std::vector<std::string> rest) const {
    std::vector<std::string> all{"--nnodes",      "2",         "--node-rank",   std::to_string(rank),
                                 "--master-addr", "127.0.0.1", "--master-port", std::to_string(port)};
    all.insert(all.end(), rest.begin(), rest.end());
    return all;
  }
  std::string path(const std::string& name) const { return folder_.path() / name; }
  void touch(const std::string& name) const { std::ofstream(path(name)) << '\n'; }
  static bool is_taken(int port) {
    try {
      base::listen_on("127.0.0.1", static_cast<uint16_t>(port));
      return false;
    } catch (const ConfigError&) {
      return true;
    }
  }
  // Gone, or not reaped yet.
  static bool has_ended(pid_t pid) {
    std::ifstream stat("/proc/" + std::to_string(pid) + "/stat");
    std::string number, name, state;
    stat >> number >> name >> state;
    return state.empty() || state == "Z" || state == "X";
  }
  template <typename Condition>
  static bool eventually(Condition condition) {
    const auto deadline = std::chrono::steady_clock::now() + kSlowBound;
    while (!condition()) {
      if (std::chrono::steady_clock::now() > deadline) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return true;
  }

  // One of two launchers waits in such a call for much longer than a heartbeat timeout, until the
  // other one's rank has printed a line. Both are to end well.
  void outlast(int held_node, const std::vector<int>& numbers, const std::string& held_path) {
    const int port = free_port();
    std::filesystem::create_symlink("/bin/sh", path("slow-program"));
    const std::string quick = "/bin/sh", slow = path("slow-program");
    const std::string waits =
        "sleep 4; echo waited; while [ ! -e " + path("other") + " ]; do sleep 0.01; done";
    const std::string touches = ": > " + path("other");
    Process free = start(node(1 - held_node, port, {quick, "-c", waits}));
    std::optional<Process> held;
    HeldCalls calls(numbers, held_path, [&] {
      held.emplace(start(node(held_node, port, {slow, "-c", touches})));
    });
    calls.wait_for(1);
    EXPECT_EQ(free.read_line(kSlowBound), "[default" + std::to_string(1 - held_node) + "]:waited")
        << free.errors();
    calls.release();
    EXPECT_EQ(finish(free, kSlowBound).code, 0) << free.errors();
    EXPECT_EQ(finish(*held, kSlowBound).code, 0) << held->errors();
  }

  // The number of the thread that keeps a rank of traced_rank from ending, once it is traced.
  pid_t trace_rank() const {
    EXPECT_TRUE(eventually([&] { return std::filesystem::exists(path("thread")); }));
    pid_t thread = 0;
    std::ifstream(path("thread")) >> thread;
    EXPECT_EQ(::ptrace(PTRACE_SEIZE, thread, nullptr, nullptr), 0) << std::strerror(errno);
    return thread;
  }

  TemporaryFolder folder_;
};

TEST_F(SlowSystemTest, AProgramThatIsSlowToStartKeepsItsLauncherAlive) {
  outlast(1, {SYS_execve}, "slow-program");
}

TEST_F(SlowSystemTest, AProgramThatIsSlowToStartKeepsTheJobOfItsHostAlive) {
  outlast(0, {SYS_execve}, "slow-program");
}

TEST_F(SlowSystemTest, AFolderThatIsSlowToMakeKeepsItsLauncherAlive) {
#ifdef SYS_mkdir
  const std::vector<int> calls{SYS_mkdir, SYS_mkdirat};
#else
  const std::vector<int> calls{SYS_mkdirat};  // aarch64 has no other
#endif
  outlast(1, calls, "attempt_0");
}

// Nothing of a node that the others have given up may run, also where its launcher is blocked.
TEST_F(SlowSystemTest, WorkersOfALauncherThatIsBlockedEndWithTheJob) {
  const int port = free_port();
  const std::string script = "echo $$ > " + path("new-$RANK") + "; mv " + path("new-$RANK") + " " +
                             path("pid-$RANK") + "; exec sleep 1000";
  Process host = start(node(0, port, {"-n", "2", "/bin/sh", "-c", script}));
  std::optional<Process> blocked;
  // The first of its two ranks runs, and the launcher opens the second one's log.
  HeldCalls calls({SYS_openat}, "/1/stdout.log", [&] {
    blocked.emplace(start(node(1, port, {"-n", "2", "--redirects", "3", "/bin/sh", "-c", script})));
  });
  calls.wait_for(1);
  ASSERT_TRUE(eventually([&] { return std::filesystem::exists(path("pid-2")); }));
  pid_t worker = 0;
  std::ifstream(path("pid-2")) >> worker;
  host.signal(SIGKILL);
  EXPECT_TRUE(eventually([&] { return has_ended(worker); }));
  calls.release();
  const Finished ended = finish(*blocked, kSlowBound);
  EXPECT_EQ(ended.code, kExitNodeLost) << ended.errors;
  EXPECT_THAT(ended.errors, HasSubstr("lost contact with the job"));
}

TEST_F(SlowSystemTest, AProgramThatCannotRunIsNamed) {
  std::ofstream(path("no-program")) << "text";
  ::chmod(path("no-program").c_str(), 0755);
  Process job = start({"-n", "2", "--no-python", path("no-program")});
  const Finished ended = finish(job, kSlowBound);
  EXPECT_EQ(ended.code, kExitUsage);
  EXPECT_THAT(ended.errors, HasSubstr("cannot execute '" + path("no-program") + "': Exec format error"));
}

TEST_F(SlowSystemTest, ARankThatCannotBeKilledEndsAJobOfOneNode) {
  Process job = start({"-n", "2", "--max-restarts", "1", "--shutdown-timeout", "0.1", "--kill-timeout", "1",
                       program_path("test/traced_rank"), folder_.path()});
  const pid_t thread = trace_rank();
  touch("fail");
  const Finished ended = finish(job, kSlowBound);
  EXPECT_EQ(ended.code, kExitNodeLost) << ended.errors;
  EXPECT_THAT(ended.errors,
              AllOf(HasSubstr("[run] rank 1 (pid "), HasSubstr("did not end within 1 s after SIGKILL"),
                    HasSubstr("rank 0 (local rank 0 of node 0, "), HasSubstr("failed first: exit code 3"),
                    HasSubstr("no restart without the node that hosts the job")));
  ::waitpid(thread, nullptr, __WALL);
}

TEST_F(SlowSystemTest, ANodeWithARankThatCannotBeKilledIsLostAndTheOthersGoOn) {
  const int port = free_port();
  const std::vector<std::string> arguments{"--nnodes",
                                           "1:2",
                                           "--rdzv-backend",
                                           "c10d",
                                           "--rdzv-endpoint",
                                           fmt::format("127.0.0.1:{}", port),
                                           "--rdzv-conf",
                                           "last_call_timeout=30",
                                           "--max-restarts",
                                           "1",
                                           "--shutdown-timeout",
                                           "0.1",
                                           "--kill-timeout",
                                           "1",
                                           program_path("test/traced_rank"),
                                           folder_.path()};
  Process first = start(arguments);
  ASSERT_TRUE(eventually([&] { return is_taken(port); }));
  Process second = start(arguments);
  const pid_t thread = trace_rank();
  touch("fail");
  const Finished other = finish(first, kSlowBound);
  EXPECT_EQ(other.code, 0) << other.errors;
  EXPECT_THAT(other.errors, AllOf(HasSubstr("[run] node 1 ("), HasSubstr("counts as lost: rank 1 (pid "),
                                  HasSubstr("did not end within 1 s after SIGKILL")));
  const Finished stuck = finish(second, kSlowBound);
  EXPECT_EQ(stuck.code, kExitNodeLost) << stuck.errors;
  EXPECT_THAT(stuck.errors, HasSubstr("this node counts as lost: rank 1 (pid "));
  ::waitpid(thread, nullptr, __WALL);
}

// Keeps that many connections to a port, and says nothing. Whoever is thrown out comes again.
class Flood {
 public:
  Flood(uint16_t port, size_t connections) {
    thread_ = std::thread([this, port, connections] { run(port, connections); });
  }
  ~Flood() {
    stop_ = true;
    thread_.join();
  }

 private:
  static base::UniqueFd connect_to(uint16_t port) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    base::UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    ::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address);
    return fd;
  }
  static bool is_open(int fd) {
    std::array<char, 4096> bytes{};
    const ssize_t got = ::recv(fd, bytes.data(), bytes.size(), MSG_DONTWAIT);
    return got > 0 || (got < 0 && (errno == EAGAIN || errno == ENOTCONN));
  }
  void run(uint16_t port, size_t connections) {
    std::vector<base::UniqueFd> sockets(connections);
    while (!stop_) {
      for (base::UniqueFd& fd : sockets) {
        if (!fd || !is_open(fd.get())) fd = connect_to(port);
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }

  std::atomic<bool> stop_ = false;
  std::thread thread_;
};

// Of another process.
size_t count_descriptors(pid_t pid) {
  const std::filesystem::directory_iterator folder("/proc/" + std::to_string(pid) + "/fd"), end;
  return static_cast<size_t>(std::distance(folder, end));
}

// The soft limit of open files, which what is started inherits.
class OpenFiles {
 public:
  OpenFiles() { ::getrlimit(RLIMIT_NOFILE, &before_); }
  ~OpenFiles() { set(before_.rlim_cur); }
  void set(rlim_t soft) const {
    const rlimit limit{soft, before_.rlim_max};
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
  }

 private:
  rlimit before_{};
};

TEST_F(SlowSystemTest, SilentStrangersLeaveDescriptorsForARestart) {
  const int port = free_port();
  const OpenFiles files;
  files.set(1024);
  // Hard and soft: there is no way out but to keep strangers away.
  Process job = Process({"/bin/sh",
                         "-c",
                         "ulimit -Hn 1024; exec \"$@\"",
                         "sh",
                         program_path("lockstep"),
                         "run",
                         "-n",
                         "4",
                         "--nnodes",
                         "1:2",
                         "--rdzv-backend",
                         "c10d",
                         "--rdzv-endpoint",
                         "127.0.0.1:" + std::to_string(port),
                         "--rdzv-conf",
                         "last_call_timeout=0.1",
                         "--max-restarts",
                         "1",
                         "/bin/sh",
                         "-c",
                         "[ $TORCHELASTIC_RESTART_COUNT = 1 ] && exit 0; : > " + path("runs") +
                             "; while [ ! -e " + path("fail") + " ]; do sleep 0.05; done; exit 1"},
                        {{"TMPDIR", folder_.path().string()}});
  ASSERT_TRUE(eventually([&] { return std::filesystem::exists(path("runs")); })) << job.errors();
  files.set(4096);
  const Flood flood(static_cast<uint16_t>(port), 1500);
  // As many as it ever takes: the number does not grow any more.
  size_t count = 0;
  int unchanged = 0;
  ASSERT_TRUE(eventually([&] {
    const size_t now = count_descriptors(job.pid());
    unchanged = now > count || now < 600 ? 0 : unchanged + 1;
    count = std::max(count, now);
    return unchanged > 100;
  }));
  EXPECT_LT(count, 1024 - 200);
  touch("fail");
  const Finished ended = finish(job, kSlowBound);
  EXPECT_EQ(ended.code, 0) << ended.errors;
}

TEST_F(SlowSystemTest, WorkersKeepTheLimitOfOpenFilesThatTheJobWasStartedWith) {
  const OpenFiles files;
  files.set(512);
  Process job = start({"-n", "2", "/bin/sh", "-c", "ulimit -Sn"});
  const Finished ended = finish(job, kSlowBound);
  EXPECT_EQ(ended.code, 0) << ended.errors;
  EXPECT_THAT(ended.output, AllOf(HasSubstr("[default0]:512\n"), HasSubstr("[default1]:512\n")));
}

// --- names that nobody knows; this one is no name at all, so that no server is asked

constexpr char kNoHost[] = "no..host";

TEST_F(SlowSystemTest, ALauncherNamesAHostThatIsNotKnown) {
  for (const char* rank : {"0", "1"}) {
    Process job = start({"--nnodes", "2", "--node-rank", rank, "--master-addr", kNoHost, "--master-port",
                         "29511", "/bin/true"});
    const Finished ended = finish(job, kSlowBound);
    EXPECT_NE(ended.code, 0);
    EXPECT_THAT(ended.errors,
                AllOf(HasSubstr("the job's rendezvous is at host 'no..host' port 29511"),
                      HasSubstr("Name or service not known"), HasSubstr("set --master-addr to")));
  }
  Process job =
      start({"--nnodes", "1:2", "--rdzv-backend", "c10d", "--rdzv-endpoint", "no..host:29512", "/bin/true"});
  EXPECT_THAT(finish(job, kSlowBound).errors,
              AllOf(HasSubstr("host 'no..host' port 29512"), HasSubstr("set --rdzv-endpoint to")));
}

struct Start {
  const char* name;
  Process::EnvironmentChanges variables;
  const char* remedy;
};

class UnknownMasterTest : public testing::TestWithParam<Start> {};

TEST_P(UnknownMasterTest, IsOneSentenceOfEachRank) {
  Process::EnvironmentChanges changes = GetParam().variables;
  changes["MASTER_ADDR"] = kNoHost;
  changes["MASTER_PORT"] = "29513";
  Process rank({program_path("ranks"), "--compute_setup", "cpu"}, changes);
  const Finished ended = finish(rank, kSlowBound);
  EXPECT_EQ(ended.code, kExitUsage) << ended.errors;
  EXPECT_THAT(ended.errors,
              AllOf(HasSubstr("rank 1 of 4 is to meet the others at host 'no..host' port 29513"),
                    HasSubstr("Name or service not known"), HasSubstr(GetParam().remedy)));
  EXPECT_EQ(std::count(ended.errors.begin(), ended.errors.end(), '\n'), 1) << ended.errors;
}

INSTANTIATE_TEST_SUITE_P(Starts, UnknownMasterTest,
                         testing::Values(Start{"Torchrun",
                                               {{"RANK", "1"},
                                                {"WORLD_SIZE", "4"},
                                                {"LOCAL_RANK", "1"},
                                                {"LOCAL_WORLD_SIZE", "4"},
                                                {"GROUP_RANK", "0"},
                                                {"GROUP_WORLD_SIZE", "1"},
                                                {"TORCHELASTIC_RUN_ID", "none"}},
                                               "set MASTER_ADDR, torchrun's --master-addr"},
                                         Start{"Srun",
                                               {{"SLURM_JOB_ID", "7"},
                                                {"SLURM_STEP_ID", "0"},
                                                {"SLURM_PROCID", "1"},
                                                {"SLURM_NTASKS", "4"},
                                                {"SLURM_LOCALID", "1"},
                                                {"SLURM_NODEID", "0"},
                                                {"SLURM_NNODES", "1"},
                                                {"SLURM_STEP_NUM_TASKS", "4"},
                                                {"SLURM_STEP_NUM_NODES", "1"},
                                                {"SLURM_STEP_NODELIST", "n1"},
                                                {"SLURM_STEP_TASKS_PER_NODE", "4"}},
                                               "set MASTER_ADDR"}),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace lockstep::test
