#include "exported/input_rules.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/error.h>
#include <torch/torch.h>

#include "exported/size_expression.h"

namespace lockstep::exported {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

const std::string kS0 = "Symbol('s0', positive=True, integer=True)";
const std::string kS1 = "Symbol('s1', positive=True, integer=True)";

// The value of an expression for s0 = 7 and s1 = 2.
std::optional<int64_t> value_of(const std::string& text) {
  SizeSymbols symbols;
  symbols.number_of("s0");
  symbols.number_of("s1");
  return SizeExpression::parse(text, symbols).value({7, 2});
}

std::string infix(const std::string& text) {
  SizeSymbols symbols;
  return SizeExpression::parse_infix(text, symbols).text(symbols);
}

TEST(SizeExpressionTest, ComputesAsPython) {
  const std::string nine_less = "Add(" + kS0 + ", Integer(-9))";
  EXPECT_EQ(value_of("Mul(Integer(2), " + kS0 + ")"), 14);
  EXPECT_EQ(value_of(nine_less), -2);
  EXPECT_EQ(value_of("FloorDiv(" + nine_less + ", Integer(4))"), -1);
  EXPECT_EQ(value_of("CleanDiv(" + kS0 + ", Integer(7))"), 1);
  EXPECT_EQ(value_of("CeilDiv(" + kS0 + ", Integer(4))"), 2);
  EXPECT_EQ(value_of("Mod(" + kS0 + ", Integer(4))"), 3);
  EXPECT_EQ(value_of("PythonMod(" + nine_less + ", Integer(4))"), 2);
  EXPECT_EQ(value_of("ModularIndexing(" + kS0 + ", Integer(2), Integer(2))"), 1);
  EXPECT_EQ(value_of("Max(" + kS0 + ", Integer(3))"), 7);
  EXPECT_EQ(value_of("Min(" + kS0 + ", " + kS1 + ", Integer(3))"), 2);
  EXPECT_EQ(value_of("Pow(" + kS0 + ", Integer(2))"), 49);
  EXPECT_EQ(value_of("Mul(Rational(1, 2), Add(" + kS0 + ", Integer(1)))"), 4);
  EXPECT_EQ(value_of("CeilToInt(IntTrueDiv(" + kS0 + ", Integer(2)))"), 4);
  EXPECT_EQ(value_of("FloorToInt(IntTrueDiv(ToFloat(" + kS0 + "), Integer(2)))"), 3);
  EXPECT_EQ(value_of("TruncToInt(IntTrueDiv(" + nine_less + ", Integer(4)))"), 0);
}

TEST(SizeExpressionTest, HasNoValueWhereThereIsNoInteger) {
  EXPECT_EQ(value_of("Mul(Rational(1, 2), " + kS0 + ")"), std::nullopt);
  EXPECT_EQ(value_of("FloorDiv(" + kS0 + ", Integer(0))"), std::nullopt);
  EXPECT_EQ(value_of("Mul(Integer(9223372036854775807), " + kS0 + ")"), std::nullopt);
  EXPECT_EQ(value_of("Pow(" + kS0 + ", Integer(99))"), std::nullopt);
  EXPECT_EQ(value_of("Symbol('s9', integer=True)"), std::nullopt);
}

TEST(SizeExpressionTest, RefusesWhatItDoesNotKnow) {
  EXPECT_THAT([] { value_of("Zeta(Integer(1))"); },
              ThrowsMessage<ProgramError>(HasSubstr("the function 'Zeta', which is not supported")));
  for (const char* text : {"Integer(1))", "Integer()", "Integer(1", "Mod(Integer(1))", "Symbol(s0)", "",
                           "Integer(99999999999999999999)", "Rational(1, 0)"}) {
    EXPECT_THAT([&] { value_of(text); }, ThrowsMessage<ProgramError>(HasSubstr("no expression"))) << text;
  }
  EXPECT_THAT(
      [] {
        value_of(std::string(70, ' ') + [] {
          std::string deep;
          for (int i = 0; i < 100; ++i) deep += "Add(";
          return deep;
        }());
      },
      ThrowsMessage<ProgramError>(HasSubstr("no expression")));
}

std::string repeated(const std::string& text, size_t count) {
  std::string result;
  for (size_t i = 0; i < count; ++i) result += text;
  return result;
}

TEST(SizeExpressionTest, RefusesMoreTermsThanAProgramHas) {
  constexpr size_t kMany = 100'000;
  const std::vector<std::string> hostile = {"s0" + repeated("+s0", kMany), "s0" + repeated("-s1", kMany),
                                            "s0" + repeated("*1", kMany), "s0" + repeated("//2", kMany),
                                            "Max(s0" + repeated(", s1", kMany) + ")"};
  for (const std::string& text : hostile) {
    EXPECT_THAT([&] { infix(text); }, ThrowsMessage<ProgramError>(HasSubstr("has more than 1000 terms: '")))
        << text.substr(0, 20);
  }
  EXPECT_THAT([] { value_of("Add(" + repeated("Integer(1), ", kMany) + "Integer(1))"); },
              ThrowsMessage<ProgramError>(HasSubstr("has more than 1000 terms")));
  EXPECT_EQ(value_of("Add(" + repeated("Integer(1), ", 900) + kS0 + ")"), 907);
  SizeSymbols symbols;
  symbols.number_of("s0");
  EXPECT_EQ(SizeExpression::parse_infix("s0" + repeated("+s0", 400), symbols).value({2}), 802);
  EXPECT_EQ(SizeExpression::parse_infix("s0" + repeated("//1", 400), symbols).value({2}), 2);
  EXPECT_EQ(SizeExpression::parse_infix("s0*2//3*2", symbols).value({5}), 6);
}

TEST(SizeExpressionTest, ReadsTheNamesOfRanges) {
  EXPECT_EQ(infix("2*s77 - 1"), "2*s77 - 1");
  EXPECT_EQ(infix("-s77 + s78*2"), "-s77 + s78*2");
  SizeSymbols symbols;
  const auto same = [&](const char* name, const std::string& expression) {
    return SizeExpression::parse_infix(name, symbols).same_as(SizeExpression::parse(expression, symbols));
  };
  EXPECT_TRUE(same("2*s0 - 1", "Add(Mul(Integer(2), " + kS0 + "), Integer(-1))"));
  EXPECT_TRUE(same("s0 + s1", "Add(" + kS1 + ", " + kS0 + ")"));
  EXPECT_TRUE(same("-s0", "Mul(Integer(-1), " + kS0 + ")"));
  EXPECT_TRUE(same("s0*s1", "Mul(" + kS0 + ", " + kS1 + ")"));
  EXPECT_TRUE(same("(s0//2)", "FloorDiv(" + kS0 + ", Integer(2))"));
  EXPECT_TRUE(same("Mod(s0, 2)", "Mod(" + kS0 + ", Integer(2))"));
  EXPECT_FALSE(same("2*s0", kS0));
  EXPECT_FALSE(same("s1", kS0));
}

// A program with one input for each of these sizes, named a, b, c.
Program program_with(const std::vector<std::vector<std::string>>& sizes,
                     std::map<std::string, Range> ranges) {
  Program program;
  for (const auto& expressions : sizes) {
    Input input;
    input.name = std::string(1, static_cast<char>('a' + program.inputs.size()));
    input.tensor.emplace();
    for (const std::string& expression : expressions) {
      input.tensor->sizes.push_back({.fixed = std::nullopt, .expression = expression});
    }
    program.inputs.push_back(std::move(input));
  }
  program.ranges = std::move(ranges);
  return program;
}

void expect_inputs_refused(InputRules& rules, const std::vector<c10::IValue>& inputs,
                           const std::string& reason) {
  EXPECT_THAT([&] { rules.check(inputs); }, ThrowsMessage<ConfigError>(HasSubstr(reason)));
}

TEST(InputRulesTest, SolvesASizeThatOccursInExpressionsAlone) {
  const std::string odd = "Add(Mul(Integer(2), " + kS0 + "), Integer(1))";
  InputRules rules(
      program_with({{odd}, {"Mul(Integer(3), " + kS0 + ")"}}, {{"2*s0 + 1", {7, 21}}, {"s0", {3, 10}}}));
  rules.check({torch::ones({9}), torch::ones({12})});
  expect_inputs_refused(
      rules, {torch::ones({10}), torch::ones({12})},
      "input 'a' has size 10 in dimension 0, and the model was exported for sizes that are 2*s0 + 1");
  expect_inputs_refused(rules, {torch::ones({9}), torch::ones({13})},
                        "input 'b' has size 13 in dimension 0, and the sizes of the other inputs require 12");
  expect_inputs_refused(rules, {torch::ones({23}), torch::ones({33})},
                        "input 'a' has size 23 in dimension 0, and the model was exported for 7 to 21");
  expect_inputs_refused(rules, {torch::ones({5}), torch::ones({6})},
                        "input 'a' has size 5 in dimension 0, and the model was exported for 7 to 21");
  EXPECT_EQ(rules.sizes_text(0), "[7 to 21]");
}

TEST(InputRulesTest, SolvesASumOfTwoSizesInAnyOrder) {
  InputRules rules(
      program_with({{"Add(" + kS0 + ", " + kS1 + ")"}, {kS1}}, {{"s0", {2, 4}}, {"s1", {2, {}}}}));
  rules.check({torch::ones({5}), torch::ones({3})});
  rules.check({torch::ones({2}), torch::ones({1})});  // torch.export never traces a size of 1
  expect_inputs_refused(rules, {torch::ones({9}), torch::ones({3})},
                        "s0 = 6, and the model was exported for 2 to 4");
}

// Each size needs the one after it, so only the last pass of many would solve the first.
TEST(InputRulesTest, SolvesALongChainOfSizes) {
  constexpr size_t kSizes = 20'000;
  const auto symbol = [](size_t i) { return fmt::format("Symbol('s{}', positive=True, integer=True)", i); };
  std::vector<std::vector<std::string>> sizes;
  std::map<std::string, Range> ranges;
  for (size_t i = 0; i < kSizes; ++i) {
    sizes.push_back({fmt::format("Add({}, {})", symbol(i), symbol(i + 1))});
    ranges[fmt::format("s{} + s{}", i, i + 1)] = {.least = 2, .most = 9};
  }
  sizes.push_back({symbol(kSizes)});
  InputRules rules(program_with(sizes, std::move(ranges)));
  std::vector<c10::IValue> inputs(kSizes + 1, torch::ones({4}));
  inputs.back() = torch::ones({2});
  rules.check(inputs);
  inputs[3] = torch::ones({10});
  expect_inputs_refused(rules, inputs, "has size 10 in dimension 0, and the model was exported for 2 to 9");
}

TEST(InputRulesTest, RefusesASizeThatCannotBeChecked) {
  EXPECT_THAT([] { InputRules rules(program_with({{"Mul(" + kS0 + ", " + kS1 + ")"}}, {})); },
              ThrowsMessage<ProgramError>(HasSubstr("s0*s1 of its input 'a' does not follow")));
}

TEST(InputRulesTest, TakesNumbersOfTheirKindAndInTheirRange) {
  Program program = program_with({{kS0}}, {{"s0", {2, {}}}, {"s1", {0, 5}}});
  const auto add = [&](const char* name, NumberMeta::Kind kind, std::optional<Extent> extent) {
    Input input;
    input.name = name;
    input.number = {.kind = kind, .extent = std::move(extent)};
    program.inputs.push_back(std::move(input));
  };
  add("count", NumberMeta::Kind::kInteger, Extent{.fixed = std::nullopt, .expression = kS1});
  add("factor", NumberMeta::Kind::kReal, std::nullopt);
  add("flag", NumberMeta::Kind::kBoolean, std::nullopt);
  InputRules rules(program);
  EXPECT_EQ(rules.sizes_text(0), "[2 or more]");
  EXPECT_EQ(rules.sizes_text(1), "0 to 5");
  const at::Tensor a = torch::ones({3});
  rules.check({a, 5, 0.5, true});
  rules.check({a, 0, 1, false});
  expect_inputs_refused(rules, {a, 6, 0.5, true},
                        "input 'count' is 6, and the model was exported for 0 to 5");
  expect_inputs_refused(rules, {a, 0.5, 0.5, true}, "input 'count' must be an integer");
  expect_inputs_refused(rules, {a, 5, true, true}, "input 'factor' must be a number");
  expect_inputs_refused(rules, {a, 5, 0.5, 1}, "input 'flag' must be true or false");
}

}  // namespace
}  // namespace lockstep::exported
