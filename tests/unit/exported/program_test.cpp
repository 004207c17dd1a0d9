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

// A program of the corpus with one text replaced.
std::string edited_program(const std::string& name, const std::string& old, const std::string& replacement) {
  std::ostringstream text;
  text << std::ifstream(test::data_path("fuzz/exported_program/" + name)).rdbuf();
  std::string program = text.str();
  const size_t at = program.find(old);
  EXPECT_NE(at, std::string::npos) << old;
  if (at != std::string::npos) program.replace(at, old.size(), replacement);
  return program;
}

// The program of Net with one text replaced; the reason why it is refused.
void expect_refused(const std::string& old, const std::string& replacement, const std::string& reason) {
  const std::string program = edited_program("net", old, replacement);
  EXPECT_THAT([&] { const Executable executable(parse_program(program)); },
              ThrowsMessage<ProgramError>(HasSubstr(reason)));
}

// The operator of a program as `lockstep ckpt inspect` describes it.
OperatorUse use_in(const std::string& program, const std::string& target) {
  for (const OperatorUse& use : operators_of(parse_program(program))) {
    if (use.target == target) return use;
  }
  ADD_FAILURE() << "no operator " << target;
  return {};
}

TEST(ProgramTest, RefusesOperatorsByName) {
  const std::string relu = "torch.ops.aten.relu_.default";
  expect_refused(relu, "torch.ops.aten.relu_.other", "torch.ops.aten.relu_.other at make_golden.py:");
  expect_refused(relu, "torch.ops.aten.relu_.other", "does not have it");
  expect_refused(relu, "torch.ops.aten.from_file.default", "it reads and writes files");
  expect_refused(relu, "torch.ops.evil.relu_.default", "its namespace is not one of LibTorch's");
  expect_refused(relu, "os.system", "os.system at make_golden.py:");
}

TEST(ProgramTest, RefusesOperatorsThatDoNotCheckTheirArguments) {
  const std::string relu = "torch.ops.aten.relu_.default";
  expect_refused(relu, "torch.ops.aten._reshape_alias.default", "it is an internal operator of LibTorch");
  expect_refused(relu, "torch.ops.aten._print.default", "it is an internal operator of LibTorch");
  const std::string call =
      relu + R"(", "inputs": [{"name": "self", "arg": {"as_tensor": {"name": "batch_norm"}}, "kind": 1)";
  const auto segments = [&](const std::string& argument) {
    return R"(torch.ops.aten.segment_reduce.default", "inputs": [{"name": "data", "arg": {"as_tensor": {"name":)"
           R"( "batch_norm"}}, "kind": 1}, {"name": "reduce", "arg": {"as_string": "sum"}, "kind": 1},)"
           R"( {"name": "unsafe", "arg": )" +
           argument + R"(, "kind": 1)";
  };
  const std::string reason = "with 'unsafe' it does not check its indices";
  expect_refused(call, segments("{\"as_bool\": true}"), reason);
  expect_refused(call, segments("{\"as_tensor\": {\"name\": \"x\"}}"), reason);
  const std::string checked = edited_program("net", call, segments("{\"as_bool\": false}"));
  EXPECT_NO_THROW(const Executable executable(parse_program(checked)));
}

TEST(ProgramTest, RefusesASwitchOfTrainingThatTheProgramComputes) {
  expect_refused(R"({"name": "train", "arg": {"as_bool": true})",
                 R"({"name": "train", "arg": {"as_tensor": {"name": "x"}})",
                 "argument 'train' is no constant");
}

TEST(ProgramTest, ListsWhyRegionsAreRefused) {
  const std::string region = "torch.ops.higher_order.wrap_with_autocast";
  EXPECT_EQ(use_in(edited_program("pair", "x", "x"), region).refusal, "");
  const std::string program = edited_program("pair", R"({"as_string": "cpu"})", R"({"as_string": "abacus"})");
  EXPECT_THAT(use_in(program, region).refusal, HasSubstr("no autocast for 'abacus'"));
  EXPECT_EQ(use_in(program, "torch.ops.aten.linear.default").refusal, "");
}

TEST(ProgramTest, ListsOperatorsWithoutAFormulaBetweenParametersAndResults) {
  const std::string copies = edited_program("copies", "x", "x");
  const std::string copy = "torch.ops.aten.copy.default";
  EXPECT_EQ(use_in(copies, copy).count, 2);
  EXPECT_TRUE(use_in(copies, copy).stops_gradients);
  EXPECT_FALSE(use_in(copies, "torch.ops.aten.linear.default").stops_gradients);
  // Of the two copies, that of integers is none.
  EXPECT_EQ(Executable(parse_program(copies)).without_gradient().size(), 1U);
  std::string frozen = copies;
  const std::string trained = "\"requires_grad\": true";
  for (size_t at = frozen.find(trained); at != std::string::npos; at = frozen.find(trained)) {
    frozen.replace(at, trained.size(), "\"requires_grad\": false");
  }
  EXPECT_FALSE(use_in(frozen, copy).stops_gradients);
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
