// What the ranks of a job say while they train: one bar on a terminal, lines elsewhere,
// and nothing from the ranks other than 0.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <regex>

#include "support/process.h"
#include "support/temporary_folder.h"

namespace lockstep::test {
namespace {

using std::chrono::seconds;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

constexpr auto kPatience = seconds(120);  // under any load
constexpr char kCtrlC[] = "\x03";
constexpr char kText[] =
    "epoch [0-9]+/1000000000 \\[[#-]{20}\\] [0-9]+/4  loss [0-9.e+-]+  [0-9.e+-]+ samples/s  [0-9:]+ left";
// Where a bar is written over the one before.
constexpr char kBar[] = "\repoch ";
constexpr char kTakenAway[] = "\r\033[K";

class ProgressTest : public testing::Test {
 protected:
  std::vector<std::string> endless_training() const {
    return {program_path("sine"),
            "--compute_setup",
            "cpu",
            "--root_folder",
            folder_.path(),
            "--max_iter",
            "1000000000",
            "--write_every",
            "0",
            "--print_every",
            "20"};
  }
  std::vector<std::string> endless_rank() const {
    std::vector<std::string> command = endless_training();
    command.insert(command.end(), {"--init_method", "file://" + (folder_.path() / "meeting").string()});
    return command;
  }

  // Of a job of two that nobody launched: so each can have streams of its own.
  static Process::EnvironmentChanges rank(int number) {
    const std::string text = std::to_string(number);
    return {
        {"RANK", text},           {"WORLD_SIZE", "2"},       {"LOCAL_RANK", text}, {"LOCAL_WORLD_SIZE", "2"},
        {"GROUP_RANK", "0"},      {"GROUP_WORLD_SIZE", "1"}, {"TERM", "xterm"},    {"OMP_NUM_THREADS", "1"},
        {"COLUMNS", std::nullopt}};
  }

  // On a terminal of its own, which passes on what it shows and what is typed.
  static Process on_terminal(const std::vector<std::string>& command,
                             const Process::EnvironmentChanges& changes) {
    std::string line = "stty cols 120; exec";
    for (const std::string& word : command) line += " '" + word + "'";
    return Process({"script", "--quiet", "--return", "--flush", "--command", line, "/dev/null"}, changes);
  }

  // Reads lines until what was said so far has the text.
  static bool wait_for(Process& process, const std::string& text,
                       const std::string& (Process::*said)() const) {
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    while ((process.*said)().find(text) == std::string::npos) {
      if (std::chrono::steady_clock::now() > deadline || !process.read_line(kPatience)) return false;
    }
    return true;
  }

  TemporaryFolder folder_;
};

// What a terminal shows of a training: its bars, and the lines that stay.
struct Screen {
  std::vector<std::string> bars;
  std::vector<std::string> lines;
};

Screen screen_of(const std::string& output) {
  Screen screen;
  size_t begin = 0;
  while (begin < output.size()) {
    if (output.compare(begin, 3, "\033[K") == 0) begin += 3;
    const size_t end = std::min(output.find_first_of("\r\n", begin), output.size());
    std::string text = output.substr(begin, end - begin);
    const size_t cleared = text.find("\033[K");
    if (cleared != std::string::npos) {
      screen.bars.push_back(text.substr(0, cleared));
      text = text.substr(cleared + 3);
    }
    if (!text.empty()) screen.lines.push_back(text);
    begin = end + 1;
  }
  return screen;
}

TEST_F(ProgressTest, ATerminalShowsOneBarOfRank0AndNothingOfTheOthers) {
  Process main = on_terminal(endless_rank(), rank(0));
  Process other = on_terminal(endless_rank(), rank(1));
  ASSERT_TRUE(wait_for(main, kBar, &Process::output)) << main.output() << other.output();
  main.write_line(kCtrlC);  // to all processes of the terminal, as a user types it
  const auto status = main.wait(kPatience);
  ASSERT_TRUE(status) << main.output();
  EXPECT_EQ(*status, ExitStatus{.code = 0}) << main.output();
  ASSERT_TRUE(other.wait(kPatience)) << "rank 1 hangs: " << other.output();
  EXPECT_THAT(other.output(), IsEmpty());

  const Screen screen = screen_of(main.output());
  ASSERT_THAT(screen.bars, Not(IsEmpty()));
  for (const std::string& bar : screen.bars) EXPECT_TRUE(std::regex_match(bar, std::regex(kText))) << bar;
  EXPECT_THAT(main.output(), HasSubstr(kTakenAway)) << "the bar is taken away at the end";
  for (const std::string& line : screen.lines)
    EXPECT_THAT(line, Not(HasSubstr("samples/s"))) << "a bar stays";
}

TEST_F(ProgressTest, AJobOfTwoRanksOnATerminalHasOneBar) {
  std::vector<std::string> command = endless_training();
  command.insert(command.end(), {"--nprocs", "2"});
  Process job = on_terminal(command, {{"TERM", "xterm"}, {"OMP_NUM_THREADS", "1"}});
  ASSERT_TRUE(wait_for(job, kBar, &Process::output)) << job.output();
  job.write_line(kCtrlC);
  const auto status = job.wait(kPatience);
  ASSERT_TRUE(status) << job.output();
  EXPECT_THAT(job.output(), HasSubstr("stopped: interrupted"));
  // Two would take turns, each with a loss of its own for the same step.
  int64_t before = 0;
  for (const std::string& bar : screen_of(job.output()).bars) {
    std::smatch match;
    if (!std::regex_search(bar, match, std::regex("^epoch ([0-9]+)/[0-9]+ \\[[#-]+\\] ([0-4])/4"))) continue;
    const int64_t step = std::stoll(match[1]) * 4 + std::stoll(match[2]);
    EXPECT_GT(step, before) << bar;
    before = step;
  }
  EXPECT_GT(before, 0);
}

TEST_F(ProgressTest, APipeGetsLinesOfRank0AndNothingOfTheOthers) {
  Process main(endless_rank(), rank(0));
  Process other(endless_rank(), rank(1));
  ASSERT_TRUE(wait_for(main, " left\n", &Process::errors)) << main.output() << main.errors();
  main.signal(SIGINT);
  ASSERT_TRUE(main.wait(kPatience)) << main.output();
  ASSERT_TRUE(other.wait(kPatience)) << "rank 1 hangs: " << other.errors();
  EXPECT_THAT(other.output(), IsEmpty());
  EXPECT_THAT(other.errors(), IsEmpty());
  EXPECT_THAT(main.errors(), Not(HasSubstr("\r"))) << "lines, no bar";
  EXPECT_THAT(main.errors(), Not(HasSubstr("\033")));
  EXPECT_TRUE(std::regex_search(main.errors(), std::regex("(^|\n)" + std::string(kText) + "\n")))
      << main.errors();
  EXPECT_THAT(main.output(), HasSubstr("stopped: interrupted"));
}

TEST_F(ProgressTest, APipeGetsALineWhileTheFirstStepRuns) {
  Process program({program_path("test/slow_step"), "--root_folder", folder_.path()},
                  {{"OMP_NUM_THREADS", "1"}});
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  const auto has_line = [&program] {
    return program.errors().find("epoch 1/3 [--------------------] 0/4\n") != std::string::npos;
  };
  while (!has_line() && std::chrono::steady_clock::now() < deadline) {
    program.read_line(std::chrono::milliseconds(100));  // nothing comes on standard output
  }
  EXPECT_TRUE(has_line()) << program.output() << program.errors();
  program.close_input();
  const auto status = program.wait(kPatience);
  ASSERT_TRUE(status) << program.output();
  EXPECT_EQ(*status, ExitStatus{.code = 0}) << program.output();
}

}  // namespace
}  // namespace lockstep::test
