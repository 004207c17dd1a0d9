#include "exported/program.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "exported/executable.h"
#include "support/golden.h"

namespace lockstep::exported {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

// The program of Net with one text replaced; the reason why it is refused.
void expect_refused(const std::string& old, const std::string& replacement, const std::string& reason) {
  std::ostringstream text;
  text << std::ifstream(test::data_path("fuzz/exported_program/net")).rdbuf();
  std::string program = text.str();
  const size_t at = program.find(old);
  ASSERT_NE(at, std::string::npos) << old;
  program.replace(at, old.size(), replacement);
  EXPECT_THAT([&] { const Executable executable(parse_program(program)); },
              ThrowsMessage<ProgramError>(HasSubstr(reason)));
}

TEST(ProgramTest, RefusesOperatorsByName) {
  const std::string relu = "torch.ops.aten.relu_.default";
  expect_refused(relu, "torch.ops.aten.relu_.other", "torch.ops.aten.relu_.other at make_golden.py:");
  expect_refused(relu, "torch.ops.aten.relu_.other", "does not have it");
  expect_refused(relu, "torch.ops.aten.from_file.default", "it reads and writes files");
  expect_refused(relu, "torch.ops.evil.relu_.default", "its namespace is not one of LibTorch's");
  expect_refused(relu, "os.system", "os.system at make_golden.py:");
}

TEST(ProgramTest, RefusesWhatContradictsTheSchema) {
  expect_refused("\"name\": \"momentum\"", "\"name\": \"impulse\"", "it has the argument 'momentum'");
  expect_refused("\"as_float\": 0.1", "\"as_string\": \"a\"", "argument 'momentum' takes float");
  expect_refused("\"name\": \"momentum\"", "\"name\": \"eps\"", "another schema in this LibTorch");
}

TEST(ProgramTest, RefusesWhatContradictsItself) {
  expect_refused("\"as_tensor\": {\"name\": \"x\"}", "\"as_tensor\": {\"name\": \"linear\"}",
                 "'x' before it defines it");
  expect_refused("\"as_float\": 0.1", "\"as_int\": 99999999999999999999", "not an integer of 64 bits");
  expect_refused("{\"as_int\": 3}", "{\"as_int\": -3}", "no fixed size");
  expect_refused("\"major\": 8", "\"major\": 9", "its format has version 9.");
  expect_refused("\"buffer_name\": \"layers.1.running_mean\"", "\"buffer_name\": \"layers.1.running_var\"",
                 "two inputs for 'layers.1.running_var'");
}

TEST(ProgramTest, RefusesInputsOfOtherKinds) {
  expect_refused("{\"as_tensor\": {\"name\": \"x\"}}}}", "{\"as_ints\": [1, 2]}}}",
                 "inputs of the kind 'as_ints', which are not supported");
}

}  // namespace
}  // namespace lockstep::exported
