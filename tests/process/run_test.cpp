// `lockstep run` on one node, with real processes that fail, hang and are killed.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <thread>

#include "support/process.h"

namespace lockstep::test {
namespace {

using std::chrono::seconds;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

class RunTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::temp_directory_path() / ("lockstep_run_test_" + std::to_string(::getpid()));
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  Process start(std::vector<std::string> arguments, Process::EnvironmentChanges changes = {}) {
    arguments.insert(arguments.begin(), {program_path("lockstep"), "run"});
    changes["OMP_NUM_THREADS"] = std::nullopt;
    changes["TMPDIR"] = folder_;
    return Process(std::move(arguments), changes);
  }

  Process run(std::vector<std::string> arguments, Process::EnvironmentChanges changes = {}) {
    Process process = start(std::move(arguments), std::move(changes));
    finish(process);
    return process;
  }

  void finish(Process& process) {
    const auto status = process.wait(seconds(60));
    EXPECT_TRUE(status) << "no end: " << process.output() << process.errors();
    if (status) status_ = *status;
  }

  std::string file(const std::string& name) const { return folder_ / name; }

  std::string read(const std::string& name) const {
    std::ifstream stream(file(name));
    std::ostringstream text;
    text << stream.rdbuf();
    return text.str();
  }

  // The processes whose pids the workers wrote, one a line.
  std::set<pid_t> pids_in(const std::string& name) const {
    std::istringstream text(read(name));
    std::set<pid_t> pids;
    for (pid_t pid = 0; text >> pid;) pids.insert(pid);
    return pids;
  }

  static bool all_gone(const std::set<pid_t>& pids) {
    for (const pid_t pid : pids) {
      if (::kill(pid, 0) == 0) return false;
    }
    return true;
  }

  template <typename Condition>
  static bool eventually(Condition condition) {
    const auto deadline = std::chrono::steady_clock::now() + seconds(30);
    while (!condition()) {
      if (std::chrono::steady_clock::now() > deadline) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return true;
  }

  std::filesystem::path folder_;
  ExitStatus status_;
};

std::vector<std::string> sorted_lines(const std::string& text) {
  std::istringstream stream(text);
  std::vector<std::string> lines;
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  std::sort(lines.begin(), lines.end());
  return lines;
}

TEST_F(RunTest, EveryRankKnowsWhoItIs) {
  const Process done =
      run({"-n", "3", "--role", "r", "--rdzv-id", "job", "sh", "-c",
           "echo $RANK $LOCAL_RANK $WORLD_SIZE $LOCAL_WORLD_SIZE $GROUP_RANK $GROUP_WORLD_SIZE "
           "$ROLE_NAME $ROLE_RANK $ROLE_WORLD_SIZE $MASTER_ADDR $TORCHELASTIC_RESTART_COUNT "
           "$TORCHELASTIC_MAX_RESTARTS $TORCHELASTIC_RUN_ID $TORCHELASTIC_USE_AGENT_STORE "
           "$TORCH_NCCL_ASYNC_ERROR_HANDLING"});
  EXPECT_EQ(status_, ExitStatus{.code = 0});
  EXPECT_THAT(sorted_lines(done.output()),
              testing::ElementsAre("[r0]:0 0 3 3 0 1 r 0 3 127.0.0.1 0 0 job False 1",
                                   "[r1]:1 1 3 3 0 1 r 1 3 127.0.0.1 0 0 job False 1",
                                   "[r2]:2 2 3 3 0 1 r 2 3 127.0.0.1 0 0 job False 1"));
  EXPECT_THAT(done.errors(),
              testing::MatchesRegex("\\[run\\] OMP_NUM_THREADS=[0-9]+ for each of 3 ranks here\n"));
  EXPECT_TRUE(std::filesystem::is_empty(folder_)) << "the temporary folder is removed";
}

TEST_F(RunTest, OneRankSpeaksForItself) {
  const Process done = run({"sh", "-c", "printf 'no line end'; printf err >&2"});
  EXPECT_EQ(done.output(), "no line end");
  EXPECT_EQ(done.errors(), "err");
}

TEST_F(RunTest, ProgramsOfOursJoinIt) {
  const Process done = run({"-n", "2", program_path("ranks"), "--compute_setup", "cpu"});
  EXPECT_EQ(status_.code, 0) << done.errors();
  EXPECT_THAT(done.output(), HasSubstr("rank=1 world_size=2 local_rank=1"));
}

TEST_F(RunTest, TheFirstFailureIsTheStatusAndTheReport) {
  const Process done =
      run({"-n", "3", "sh", "-c", "if [ $RANK = 1 ]; then echo why >&2; exit 41; fi; exec sleep 1000"});
  EXPECT_EQ(status_, ExitStatus{.code = 41});
  EXPECT_THAT(done.errors(), HasSubstr("[run] rank 1 (local rank 1 of node 0, "));
  EXPECT_THAT(done.errors(), HasSubstr("failed first: exit code 41\n"));
  EXPECT_THAT(done.errors(), HasSubstr("  the last lines of its standard error:\n    why\n"));
}

TEST_F(RunTest, WhoFailsByAnothersFailureIsNotTheFirst) {
  // Rank 0 ends as soon as its launcher has seen that rank 1 is gone.
  const char* script = R"(
    if [ $RANK = 1 ]; then echo $$ > "$TMPDIR/new"; mv "$TMPDIR/new" "$TMPDIR/pid"; exit 74; fi
    until [ -e "$TMPDIR/pid" ]; do :; done
    read pid < "$TMPDIR/pid"
    while kill -0 $pid 2> /dev/null; do :; done
    exit 41)";
  const Process done = run({"-n", "2", "sh", "-c", script});
  EXPECT_EQ(status_, ExitStatus{.code = 41}) << done.errors();
  EXPECT_THAT(done.errors(), HasSubstr("[run] rank 0 "));

  const Process alone = run({"-n", "2", "sh", "-c", "[ $RANK = 1 ] && exit 74; exec sleep 1000"});
  EXPECT_EQ(status_, ExitStatus{.code = 74}) << alone.errors();
}

TEST_F(RunTest, ASignalIs128PlusItsNumber) {
  const Process done = run({"-n", "2", "sh", "-c", "[ $RANK = 1 ] || kill -SEGV $$; exec sleep 1000"});
  EXPECT_EQ(status_, ExitStatus{.code = 128 + SIGSEGV});
  EXPECT_THAT(done.errors(), HasSubstr("signal 11 (SIGSEGV)"));
}

TEST_F(RunTest, TheErrorFileIsShownAndPassedOn) {
  const std::string ours = file("ours.json");
  const Process done =
      run({"-n", "2", "sh", "-c",
           "[ $RANK = 0 ] || exec sleep 1000; "
           "echo '{\"message\": \"the reason\", \"timestamp\": 7}' > $TORCHELASTIC_ERROR_FILE; exit 3"},
          {{"TORCHELASTIC_ERROR_FILE", ours}});
  EXPECT_EQ(status_.code, 3);
  EXPECT_THAT(done.errors(), HasSubstr("  its error file says:\n    the reason\n"));
  EXPECT_EQ(read("ours.json"), "{\"message\": \"the reason\", \"timestamp\": 7}\n");
}

TEST_F(RunTest, RestartsAllRanksAndCountsThem) {
  // Rank 1 fails only when rank 0 has left its line: else it could be ended before.
  const Process done =
      run({"-n", "2", "--max-restarts", "3", "sh", "-c",
           "echo $RANK $TORCHELASTIC_RESTART_COUNT $MASTER_PORT >> " + file("log") +
               "; [ $TORCHELASTIC_RESTART_COUNT = 2 ] && exit 0; [ $RANK = 0 ] && exec sleep 1000; "
               "until grep -q \"^0 $TORCHELASTIC_RESTART_COUNT \" " +
               file("log") + "; do :; done; exit 5"});
  EXPECT_EQ(status_, ExitStatus{.code = 0}) << done.errors();
  std::istringstream log(read("log"));
  std::multiset<std::pair<int, int>> starts;
  std::set<int> ports;
  for (int rank = 0, count = 0, port = 0; log >> rank >> count >> port;) {
    starts.emplace(count, rank);
    ports.insert(port);
  }
  EXPECT_EQ(starts, (std::multiset<std::pair<int, int>>{{0, 0}, {0, 1}, {1, 0}, {1, 1}, {2, 0}, {2, 1}}));
  EXPECT_EQ(ports.size(), 3u) << "a port of its own for every life";
  EXPECT_THAT(done.errors(), HasSubstr("restart 2 of 3"));
}

TEST_F(RunTest, TheBudgetIsNotExceeded) {
  const Process done =
      run({"-n", "2", "--max-restarts", "2", "sh", "-c", "echo x >> " + file("log") + "; exit 9"});
  EXPECT_EQ(status_, ExitStatus{.code = 9});
  EXPECT_LE(sorted_lines(read("log")).size(), 6u);
  EXPECT_THAT(done.errors(), HasSubstr("after 2 restarts"));
}

TEST_F(RunTest, TheProgramIsAskedToPreemptAndNotRestarted) {
  const Process done =
      run({"-n", "2", "--max-restarts", "5", "sh", "-c", "echo x >> " + file("log") + "; exit 75"});
  EXPECT_EQ(status_, ExitStatus{.code = 75});
  EXPECT_LE(sorted_lines(read("log")).size(), 2u);
  EXPECT_THAT(done.errors(), HasSubstr("preempted"));
}

TEST_F(RunTest, TermAfterTheOutcomeDoesNotChangeTheStatus) {
  // Output that nobody reads keeps the launcher; by the error file it says that it has ended the job.
  Process job = start({"-n", "1", "sh", "-c", "head -c 300000 /dev/zero | tr '\\0' 'x'; exit 75"},
                      {{"TORCHELASTIC_ERROR_FILE", file("error")}});
  for (int i = 0; i < 3000 && !std::filesystem::exists(file("error")); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  job.signal(SIGTERM);
  finish(job);
  EXPECT_EQ(status_, ExitStatus{.code = 75});
  EXPECT_TRUE(std::filesystem::exists(file("error")));
}

TEST_F(RunTest, TermIsPassedOnAndGivesTheGrace) {
  Process job = start({"-n", "2", "sh", "-c",
                       "trap 'echo saved $RANK; exit 0' TERM; echo ready; while :; do sleep 0.01; done"});
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(job.read_line(seconds(30)));
  job.signal(SIGTERM);
  finish(job);
  EXPECT_EQ(status_, ExitStatus{.code = 128 + SIGTERM});
  EXPECT_THAT(job.output(), HasSubstr("saved 0"));
  EXPECT_THAT(job.output(), HasSubstr("saved 1"));
}

TEST_F(RunTest, WhoIgnoresTermIsKilled) {
  Process job =
      start({"-n", "2", "--shutdown-timeout", "0.2", "sh", "-c",
             "trap '' TERM; echo $$ >> " + file("pids") + "; echo ready; while :; do sleep 0.01; done"});
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(job.read_line(seconds(30)));
  job.signal(SIGTERM);
  finish(job);
  EXPECT_EQ(status_, ExitStatus{.code = 128 + SIGTERM});
  EXPECT_EQ(pids_in("pids").size(), 2u);
  EXPECT_TRUE(all_gone(pids_in("pids")));
}

TEST_F(RunTest, TheVariableOfTheShutdownTimeoutCountsToo) {
  for (const char* variable : {"PET_SHUTDOWN_TIMEOUT", "TORCH_ELASTIC_SHUTDOWN_TIMEOUT"}) {
    Process job =
        start({"sh", "-c", "trap '' TERM; echo ready; while :; do sleep 0.01; done"}, {{variable, "0"}});
    ASSERT_TRUE(job.read_line(seconds(30)));
    job.signal(SIGTERM);
    finish(job);
    EXPECT_EQ(status_, ExitStatus{.code = 128 + SIGTERM}) << variable;
  }
}

TEST_F(RunTest, ASecondSignalEndsThePatience) {
  Process job = start({"-n", "2", "--shutdown-timeout", "1000", "sh", "-c",
                       "trap 'echo no' INT; echo ready; while :; do sleep 0.01; done"});
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(job.read_line(seconds(30)));
  job.signal(SIGINT);
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(job.read_line(seconds(30)));
  job.signal(SIGINT);
  finish(job);
  EXPECT_EQ(status_, ExitStatus{.code = 128 + SIGINT});
}

TEST_F(RunTest, UsrSignalsArePassedOnAndEndNothing) {
  Process job = start(
      {"-n", "2", "sh", "-c", "trap 'echo got; exit 0' USR1; echo ready; while :; do sleep 0.01; done"});
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(job.read_line(seconds(30)));
  job.signal(SIGUSR1);
  finish(job);
  EXPECT_EQ(status_, ExitStatus{.code = 0});
  EXPECT_THAT(sorted_lines(job.output()), testing::ElementsAre("[default0]:got", "[default0]:ready",
                                                               "[default1]:got", "[default1]:ready"));
}

TEST_F(RunTest, NothingSurvivesSigkillOfTheLauncher) {
  Process job = start(
      {"-n", "2", "sh", "-c",
       "sleep 1000 & echo $! >> " + file("pids") + "; echo $$ >> " + file("pids") + "; echo ready; wait"});
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(job.read_line(seconds(30)));
  const std::set<pid_t> pids = pids_in("pids");
  ASSERT_EQ(pids.size(), 4u);
  job.signal(SIGKILL);
  EXPECT_TRUE(eventually([&] { return all_gone(pids); })) << "workers and their own children";
}

TEST_F(RunTest, WhatAWorkerLeavesBehindEndsWithIt) {
  run({"-n", "2", "sh", "-c", "sleep 1000 & echo $! >> " + file("pids")});
  EXPECT_EQ(status_, ExitStatus{.code = 0});
  const std::set<pid_t> pids = pids_in("pids");
  EXPECT_EQ(pids.size(), 2u);
  EXPECT_TRUE(eventually([&] { return all_gone(pids); }));
}

TEST_F(RunTest, LinesAreNeverMixed) {
  const Process done = run({"-n", "4", "sh", "-c",
                            "i=0; while [ $i -lt 500 ]; do printf '%s-%s-' $RANK $i; printf '%01000d\\n' 0; "
                            "i=$((i+1)); done"});
  EXPECT_EQ(status_.code, 0);
  std::istringstream lines(done.output());
  std::set<std::string> heads;
  for (std::string line; std::getline(lines, line);) {
    ASSERT_EQ(line.substr(line.size() - 1000), std::string(1000, '0')) << line.substr(0, 40);
    heads.insert(line.substr(0, line.size() - 1000));
  }
  EXPECT_EQ(heads.size(), 2000u);
}

TEST_F(RunTest, RedirectsAndTeesToTorchrunsLayout) {
  const Process done = run({"-n", "2", "--rdzv-id", "job", "--log-dir", file("logs"), "-r", "0:1", "-t",
                            "1:3", "sh", "-c", "echo out$RANK; echo err$RANK >&2"});
  EXPECT_EQ(done.output(), "[default1]:out1\n");
  EXPECT_THAT(done.errors(), HasSubstr("[default0]:err0\n"));
  EXPECT_THAT(done.errors(), HasSubstr("[default1]:err1\n"));
  std::set<std::string> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(file("logs"))) {
    if (!entry.is_regular_file()) continue;
    const std::string path = entry.path().lexically_relative(file("logs"));
    EXPECT_THAT(path, StartsWith("job_"));
    files.insert(path.substr(path.find('/') + 1));
  }
  EXPECT_EQ(files, (std::set<std::string>{"attempt_0/0/stdout.log", "attempt_0/1/stdout.log",
                                          "attempt_0/1/stderr.log"}));
}

TEST_F(RunTest, ThePrefixIsTheTemplates) {
  std::array<char, 256> host{};
  ASSERT_EQ(::gethostname(host.data(), host.size()), 0);
  const Process done =
      run({"-n", "2", "--role", "r", "--log-line-prefix-template",
           "${hostname} $role_name/${rank}/$local_rank $$ ${other} $rank_ ${rank > ", "echo", "x"});
  const std::string name = host.data();
  EXPECT_THAT(sorted_lines(done.output()),
              testing::ElementsAre(name + " r/0/0 $ ${other} $rank_ ${rank > x",
                                   name + " r/1/1 $ ${other} $rank_ ${rank > x"));
  EXPECT_EQ(run({"echo", "x"}, {{"PET_LOG_LINE_PREFIX_TEMPLATE", "<$rank> "}}).output(), "<0> x\n");
}

TEST_F(RunTest, OnlySomeRanksAreShown) {
  const Process done = run({"-n", "3", "--local-ranks-filter", "0,2", "sh", "-c", "echo out$RANK"});
  EXPECT_THAT(sorted_lines(done.output()), testing::ElementsAre("[default0]:out0", "[default2]:out2"));
}

TEST_F(RunTest, MatchingLinesAreCopied) {
  run({"-n", "2", "--log-dir", file("logs"), "--duplicate-stdout-filters", "apple", "sh", "-c",
       "echo apple$RANK; echo pear$RANK"});
  std::string copied;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(file("logs"))) {
    if (entry.path().filename() == "filtered_stdout.log") copied = entry.path();
  }
  ASSERT_NE(copied, "");
  std::ifstream stream(copied);
  std::ostringstream text;
  text << stream.rdbuf();
  EXPECT_THAT(sorted_lines(text.str()), testing::ElementsAre("[default0]:apple0", "[default1]:apple1"));
}

class StallTest : public RunTest {
 protected:
  // Reads lines of standard error, which the test gets as standard output, up to this one.
  static bool read_to(Process& job, const std::string& text) {
    while (const auto line = job.read_line(seconds(60))) {
      if (line->find(text) != std::string::npos) return true;
    }
    return false;
  }

  Process start_stalling(const std::string& flags) {
    return Process({"sh", "-c",
                    "exec " + program_path("lockstep") + " run -n 2 --stall-timeout 1 " + flags + " " +
                        program_path("test/stalling_rank") + " 2>&1"},
                   {{"TMPDIR", folder_.string()}});
  }
};

TEST_F(StallTest, TheReportNamesWhoWaitsAndWhoDoesNotCome) {
  Process job = start_stalling("");
  ASSERT_TRUE(read_to(job, "no rank has moved for 1 s")) << job.output();
  ASSERT_TRUE(read_to(job, "rank 0 waits in all_reduce")) << job.output();
  ASSERT_TRUE(read_to(job, "rank 1 has not arrived: its last collective was number")) << job.output();
  job.signal(SIGUSR1);
  finish(job);
  EXPECT_EQ(status_, ExitStatus{.code = 0}) << job.output();
  EXPECT_THAT(job.output(), HasSubstr("rank 1 done in life 0"));
}

TEST_F(StallTest, RestartKillsTheOneThatDoesNotCome) {
  Process job = start_stalling("--on-stall restart --max-restarts 1");
  finish(job);
  EXPECT_EQ(status_, ExitStatus{.code = 0}) << job.output();
  EXPECT_THAT(job.output(), HasSubstr("rank 1 done in life 1"));
}

TEST_F(StallTest, AbortEndsTheJob) {
  Process job = start_stalling("--on-stall abort --max-restarts 9");
  finish(job);
  EXPECT_EQ(status_, ExitStatus{.code = 128 + SIGABRT}) << job.output();
}

class PreemptionTest : public RunTest {
 protected:
  Process start_stepping(Process::EnvironmentChanges changes = {}) {
    return start(
        {"-n", "2", "--no-prefix", "--max-restarts", "3", program_path("test/preempted_rank"), file("saved")},
        std::move(changes));
  }

  static std::vector<pid_t> read_pids(Process& job) {
    std::vector<pid_t> pids;
    for (int i = 0; i < 2; ++i) {
      const auto line = job.read_line(seconds(60));
      if (line) pids.push_back(std::stoi(line->substr(4)));
    }
    return pids;
  }

  // Both ranks saved, after the same step, and for the same reason.
  void expect_saved_together(const std::string& reason) {
    std::istringstream lines(read("saved"));
    std::set<int> ranks, steps;
    for (std::string line; std::getline(lines, line);) {
      std::istringstream words(line);
      int rank = 0, step = 0;
      words >> rank >> step;
      ranks.insert(rank);
      steps.insert(step);
      EXPECT_THAT(line, HasSubstr(reason));
    }
    EXPECT_EQ(ranks, (std::set<int>{0, 1}));
    EXPECT_EQ(steps.size(), 1u) << read("saved");
  }
};

TEST_F(PreemptionTest, ASignalToOneRankStopsAllAtTheSameStep) {
  Process job = start_stepping();
  const std::vector<pid_t> pids = read_pids(job);
  ASSERT_EQ(pids.size(), 2u);
  ::kill(pids[1], SIGUSR1);
  finish(job);
  EXPECT_EQ(status_, ExitStatus{.code = 75}) << job.errors();
  expect_saved_together("got SIGUSR1");
}

TEST_F(PreemptionTest, ASignalToTheLauncherDoesToo) {
  for (const int signal : {SIGUSR2, SIGTERM}) {
    std::filesystem::remove(file("saved"));
    Process job = start_stepping();
    ASSERT_EQ(read_pids(job).size(), 2u);
    job.signal(signal);
    finish(job);
    EXPECT_EQ(status_, ExitStatus{.code = 75}) << job.errors();
    expect_saved_together(signal == SIGTERM ? "got SIGTERM" : "got SIGUSR2");
  }
}

TEST_F(PreemptionTest, TheTimeLimitDoesToo) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const auto end = std::chrono::duration_cast<seconds>(now).count() + 60;
  Process job = start_stepping({{"SLURM_JOB_END_TIME", std::to_string(end)}});
  finish(job);
  EXPECT_EQ(status_, ExitStatus{.code = 75}) << job.errors();
  expect_saved_together("time limit");
}

TEST_F(RunTest, BindingKeepsToTheMaskOfTheLauncher) {
  Process bound({"taskset", "-c", "0", program_path("lockstep"), "run", "--numa-binding", "exclusive", "sh",
                 "-c", "grep Cpus_allowed_list /proc/self/status"},
                {{"TMPDIR", folder_.string()}});
  finish(bound);
  EXPECT_EQ(bound.output(), "Cpus_allowed_list:\t0\n") << bound.errors();
}

TEST_F(RunTest, AReaderThatGoesAwayDoesNotEndTheJob) {
  // head closes the pipe after one line; the ranks go on to their own end.
  Process shell({"sh", "-c",
                 program_path("lockstep") +
                     " run -n 2 sh -c 'i=0; while [ $i -lt 2000 ]; do echo $i; i=$((i+1)); "
                     "done; echo done >> " +
                     file("log") + "' | head -n 1"},
                {{"TMPDIR", folder_.string()}});
  finish(shell);
  EXPECT_EQ(status_.code, 0);
  EXPECT_EQ(read("log"), "done\ndone\n");
}

TEST_F(RunTest, WhatCannotBeStartedIsSaidBeforeAnythingStarts) {
  EXPECT_THAT(run({"-n", "2", "/nonexistent/program"}).errors(), HasSubstr("the program does not exist"));
  EXPECT_EQ(status_, ExitStatus{.code = 2});
  EXPECT_THAT(run({"--log-dir", "/dev/null/logs", "true"}).errors(),
              HasSubstr("choose another with --log-dir"));
  EXPECT_EQ(status_, ExitStatus{.code = 2});
}

TEST_F(RunTest, APortThatIsTakenIsSaid) {
  Process holder({"python3", "-c",
                  "import socket; s = socket.socket(); s.bind(('0.0.0.0', 0)); s.listen(); "
                  "print(s.getsockname()[1], flush=True); input()"});
  const auto port = holder.read_line(seconds(30));
  ASSERT_TRUE(port);
  const Process done = run({"--master-port", *port, "true"});
  EXPECT_NE(status_.code, 0);
  EXPECT_THAT(done.errors(), HasSubstr("cannot have port " + *port));
}

}  // namespace
}  // namespace lockstep::test
