#include "launch/slurm/sbatch_values.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/error.h>

#include <string>
#include <vector>

#include "launch/slurm/sbatch_request.h"

namespace lockstep::launcher {
namespace {

using testing::AllOf;
using testing::HasSubstr;

using Check = void (*)(std::string_view, const std::string&);

void expect_accepts(Check check, const std::vector<std::string>& values) {
  for (const std::string& value : values) EXPECT_NO_THROW(check("--flag", value)) << "'" << value << "'";
}

// The error names the flag, the value and the rule.
void expect_refuses(Check check, const std::string& rule, const std::vector<std::string>& values) {
  for (const std::string& value : values) {
    try {
      check("--flag", value);
      ADD_FAILURE() << "'" << value << "' was accepted";
    } catch (const ConfigError& error) {
      EXPECT_THAT(error.what(),
                  AllOf(HasSubstr("[slurm] --flag must"), HasSubstr("'" + value + "'"), HasSubstr(rule)));
    }
  }
}

TEST(SbatchValuesTest, Time) {
  expect_accepts(check_time, {"30", "1:30:00", "2-12", "1-2:3:4", "UNLIMITED"});
  expect_refuses(check_time, "days-hours", {"", "0", "1h", "1:2:3:4", "tomorrow", "-1", "1\n"});
}

TEST(SbatchValuesTest, Memory) {
  expect_accepts(check_memory, {"0", "4000", "16G", "512m", "1T", "900K"});
  expect_refuses(check_memory, "suffix K, M, G or T",
                 {"", "G", "16GB", "1.5G", "-1", "+4", " 4", "4 G", "16P"});
}

TEST(SbatchValuesTest, Array) {
  expect_accepts(check_array, {"0", "0-15", "1,3,5-9:2", "0-99%4", "7,7", "4000000"});
  expect_refuses(check_array, "FIRST-LAST:STEP",
                 {"", "a", "3-1", "1-", "-1", "1,", ",1", "1,,2", "1-5:0", "1:2", "0-9%", "0-9%0", "0-9%2,3",
                  "1 2", "4000001", "1-2-3", "+1"});
}

TEST(SbatchValuesTest, Signal) {
  expect_accepts(check_signal, {"USR1", "SIGUSR2@120", "10@60", "TERM@0", "INT"});
  expect_refuses(
      check_signal, "",
      {"", "USR3", "usr1", "USR1@", "USR1@x", "USR1@65536", "0", "99", "@60", "USR1 @60", "R:USR1"});
  expect_refuses(check_signal, "not to the ranks", {"B:USR1@60"});
}

TEST(SbatchValuesTest, NamesAndLines) {
  expect_accepts(check_name, {"gpu", "a,b", "m_123", "gcc/12.2"});
  expect_refuses(check_name, "", {"", "a b", "-x", "a\nb", "a\tb"});
  expect_accepts(check_line, {"a b", "$HOME `id` \"'\\", "gr\u00fc\u00df"});
  expect_refuses(check_line, "without control characters",
                 {"", "a\nb", "a\rb", "\x7f", std::string(4097, 'x')});
}

TEST(SbatchValuesTest, Counts) {
  EXPECT_EQ(parse_count("--nodes", "8"), 8);
  EXPECT_EQ(parse_gpus("--gpus-per-node", "4"), 4);
  EXPECT_EQ(parse_gpus("--gpus-per-node", "a100:4"), 4);
  const Check count = [](std::string_view flag, const std::string& value) { parse_count(flag, value); };
  expect_refuses(count, "from 1 to 1048576",
                 {"", "0", "-1", "a", "1.5", "2x", "1048577", "99999999999999999999", " 1"});
  const Check gpus = [](std::string_view flag, const std::string& value) { parse_gpus(flag, value); };
  expect_refuses(gpus, "TYPE:NUMBER", {"", "0", ":4", "a100:", "a b:4", "a100:x", "gpu:a100:4", "2048"});
}

std::string refusal(const SbatchRequest& request) {
  try {
    check_request(request);
    return "accepted";
  } catch (const ConfigError& error) {
    return error.what();
  }
}

TEST(SbatchRequestTest, RanksAreOneAGpuUnlessSaid) {
  EXPECT_EQ((SbatchRequest{.command = {"x"}}).ranks_per_node(), 1);
  EXPECT_EQ((SbatchRequest{.command = {"x"}, .gpus_per_node = "a100:4"}).ranks_per_node(), 4);
  EXPECT_EQ((SbatchRequest{.command = {"x"}, .gpus_per_node = "4", .ntasks_per_node = 2}).ranks_per_node(),
            2);
}

TEST(SbatchRequestTest, ChecksWhatBelongsTogether) {
  EXPECT_EQ(refusal({.command = {"x"}, .gpus_per_node = "2", .ntasks_per_node = 4}),
            "[slurm] two ranks would share one GPU, ask for --gpus-per-node=4: --ntasks-per-node=4, "
            "--gpus-per-node=2");
  EXPECT_THAT(refusal({.command = {}}), HasSubstr("the program is missing"));
  EXPECT_THAT(refusal({.command = {""}}), HasSubstr("the program is missing"));
  EXPECT_THAT(refusal({.command = {"-x"}}), HasSubstr("must not begin with a dash"));
  EXPECT_THAT(refusal({.command = {"x"}, .job_name = "a/b"}), HasSubstr("--output"));
  EXPECT_EQ(refusal({.command = {"x"}, .job_name = "a/b", .output = "log"}), "accepted");
  EXPECT_THAT(refusal({.command = {"x"}, .modules = {"good", "bad one"}}), HasSubstr("--module must"));
}

}  // namespace
}  // namespace lockstep::launcher
