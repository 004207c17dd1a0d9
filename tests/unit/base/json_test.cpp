#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/json.h>

#include <cmath>
#include <concepts>
#include <filesystem>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>

namespace lockstep {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

template <typename Function>
std::string json_error_of(const Function& function) {
  try {
    function();
  } catch (const JsonError& error) {
    return error.what();
  }
  return "no error";
}

TEST(JsonTest, BracesMakeObjectsOfPairsThatBeginWithText) {
  EXPECT_EQ((Json{{"b", 1}, {"a", {2, 3}}}).dump(), R"({"a":[2,3],"b":1})");
  EXPECT_EQ((Json{"b", 1}).dump(), R"(["b",1])");
  EXPECT_EQ((Json{{"b", 1}, {2, 3}}).dump(), R"([["b",1],[2,3]])");
  EXPECT_EQ(Json::array({{"b", 1}}).dump(), R"([["b",1]])");
  EXPECT_EQ(Json().dump(), "null");
  EXPECT_EQ(Json::object().dump(), "{}");
  EXPECT_EQ(Json::array().dump(), "[]");
}

// Each element of such a range is the range itself: the conversion would not end.
TEST(JsonTest, TakesNoRangeOfItself) {
  static_assert(!std::convertible_to<nlohmann::json, Json>);
  EXPECT_EQ(Json(std::filesystem::path("/a/b")).dump(), R"("/a/b")");
}

TEST(JsonTest, ContainersAreArraysAndMapsAreObjects) {
  EXPECT_EQ(Json(std::vector<int64_t>{1, 2}).dump(), "[1,2]");
  EXPECT_EQ(Json(std::vector<bool>{true, false}).dump(), "[true,false]");
  EXPECT_EQ(Json(std::set<std::string>{"y", "x"}).dump(), R"(["x","y"])");
  EXPECT_EQ(Json(std::map<std::string, double>{{"a", 0.5}}).dump(), R"({"a":0.5})");
  EXPECT_EQ(Json(std::tuple(1, "x", 0.25)).dump(), R"([1,"x",0.25])");
}

TEST(JsonTest, AnOptionalIsItsValueOrNull) {
  EXPECT_EQ(Json(std::optional<double>(0.5)).dump(), "0.5");
  EXPECT_EQ(Json(std::optional<std::string>("a")).dump(), R"("a")");
  EXPECT_EQ(Json(std::optional<int64_t>()).dump(), "null");
  EXPECT_EQ((Json{{"a", std::optional<bool>(false)}}).dump(), R"({"a":false})");
}

TEST(JsonTest, ExactNumbersComeBack) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  for (const double value : {0.1, kInfinity, -kInfinity}) {
    EXPECT_EQ(exact_number_of(Json::parse(exact_number(value).dump())), value);
  }
  EXPECT_TRUE(std::isnan(exact_number_of(exact_number(std::nan("")))));
  EXPECT_TRUE(std::isnan(exact_number_of("-nan"))) << "of an older checkpoint";
  EXPECT_THROW(exact_number_of("much"), JsonError);
}

TEST(JsonTest, NumbersKeepTheirBits) {
  for (const double number : {0.1, 1e-320, -1.7976931348623157e308, 1.0, 123456789.123456789}) {
    EXPECT_EQ(Json::parse(Json(number).dump()).get<double>(), number);
  }
  EXPECT_EQ(Json(1.0).dump(), "1.0");
  EXPECT_EQ(Json(std::nan("")).dump(), "null");
  const uint64_t large = std::numeric_limits<uint64_t>::max();
  EXPECT_EQ(Json::parse(Json(large).dump()).get<uint64_t>(), large);
  EXPECT_EQ(Json::parse("-9223372036854775808").get<int64_t>(), std::numeric_limits<int64_t>::min());
  EXPECT_TRUE(Json::parse("3").is_number_integer());
  EXPECT_TRUE(Json::parse("3.0").is_number_float());
}

TEST(JsonTest, AnIntegerIsInTheRangeOfItsTypeOrAnError) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  constexpr uint64_t kLargest = std::numeric_limits<uint64_t>::max();
  const auto out_of_range = [](const auto& get, const std::string& range, const std::string& value) {
    EXPECT_EQ(json_error_of(get), "the number must be from " + range + ", not " + value);
  };
  const std::string of_int = "-2147483648 to 2147483647";
  const std::string of_int64 = "-9223372036854775808 to 9223372036854775807";
  out_of_range([] { Json(1e300).get<int>(); }, of_int, "1e+300");
  out_of_range([] { Json(std::nan("")).get<int>(); }, of_int, "nan");
  out_of_range([] { Json(-kInfinity).get<int64_t>(); }, of_int64, "-inf");
  out_of_range([] { Json(2147483648).get<int>(); }, of_int, "2147483648");
  out_of_range([] { Json(2147483648.0).get<int>(); }, of_int, "2147483648.0");
  out_of_range([] { Json(kLargest).get<int>(); }, of_int, "18446744073709551615");
  out_of_range([] { Json(kLargest).get<int64_t>(); }, of_int64, "18446744073709551615");
  out_of_range([] { Json(9223372036854775808.0).get<int64_t>(); }, of_int64, "9.223372036854776e+18");
  out_of_range([] { Json(-1).get<uint64_t>(); }, "0 to 18446744073709551615", "-1");
  out_of_range([] { Json(-1.0).get<size_t>(); }, "0 to 18446744073709551615", "-1.0");
  out_of_range([] { Json(1.8446744073709552e19).get<uint64_t>(); }, "0 to 18446744073709551615",
               "1.8446744073709552e+19");
  out_of_range([] { Json(256).get<uint8_t>(); }, "0 to 255", "256");
  out_of_range([] { Json(-129).get<int8_t>(); }, "-128 to 127", "-129");
  out_of_range([] { Json({1, 1e10}).get<std::vector<int>>(); }, of_int, "10000000000.0");
  out_of_range([] { Json{{"a", 1e10}}.value("a", 0); }, of_int, "10000000000.0");

  EXPECT_EQ(Json(2147483647.9).get<int>(), 2147483647) << "what is behind the point does not count";
  EXPECT_EQ(Json(-2147483648.9).get<int>(), -2147483647 - 1);
  EXPECT_EQ(Json(-0.9).get<uint64_t>(), 0U);
  EXPECT_EQ(Json(255).get<uint8_t>(), 255);
  EXPECT_EQ(Json(3U).get<int8_t>(), 3);
  EXPECT_EQ(Json(-9223372036854775808.0).get<int64_t>(), std::numeric_limits<int64_t>::min());
  EXPECT_EQ(Json(kLargest).get<uint64_t>(), kLargest);
  EXPECT_EQ(Json(true).get<int>(), 1);
}

TEST(JsonTest, KnowsWhichIntegersATypeHolds) {
  EXPECT_TRUE(Json(-1).is_integer_of<int>());
  EXPECT_FALSE(Json(-1).is_integer_of<uint64_t>());
  EXPECT_TRUE(Json(std::numeric_limits<uint64_t>::max()).is_integer_of<uint64_t>());
  EXPECT_FALSE(Json(std::numeric_limits<uint64_t>::max()).is_integer_of<int64_t>());
  for (const Json& other : {Json(1.0), Json(true), Json("1"), Json()})
    EXPECT_FALSE(other.is_integer_of<int>());
}

TEST(JsonTest, NumbersAreEqualByValue) {
  EXPECT_EQ(Json(3), Json(3U));
  EXPECT_EQ(Json(3), Json(3.0));
  EXPECT_FALSE(Json(-1) == Json(std::numeric_limits<uint64_t>::max()));
  EXPECT_FALSE(Json(1) == Json(true));
  EXPECT_EQ(Json::parse(R"({"a": 1, "b": [null]})"), Json::parse(R"({"b": [null], "a": 1})"));
  EXPECT_FALSE((Json{{"a", 1}}) == (Json{{"a", 1}, {"b", 2}}));
  EXPECT_FALSE(Json() == Json::object());
}

TEST(JsonTest, MembersAreSortedOrAsTheyWereAdded) {
  Json value = {{"z", 1}, {"a", {{"y", 1}, {"b", 2}}}};
  value["m"] = "text";
  EXPECT_EQ(value.dump(), R"({"a":{"b":2,"y":1},"m":"text","z":1})");
  const Json::Print as_added{.order = Json::Order::kAsAdded};
  EXPECT_EQ(value.dump(as_added), R"({"z":1,"a":{"y":1,"b":2},"m":"text"})");
  const Json copy = value;
  EXPECT_EQ(copy.dump(as_added), value.dump(as_added));
  EXPECT_EQ(Json::parse(R"({"z":1,"a":2})").dump(as_added), R"({"z":1,"a":2})");
  EXPECT_THAT(value.names(), ElementsAre("z", "a", "m"));
  value.erase("a");
  value.erase("not there");
  EXPECT_EQ(value.dump(as_added), R"({"z":1,"m":"text"})");
  value.update({{"n", 3}, {"z", 4}});
  EXPECT_EQ(value.dump(as_added), R"({"z":4,"m":"text","n":3})");
  EXPECT_EQ(value.dump(1), "{\n \"m\": \"text\",\n \"n\": 3,\n \"z\": 4\n}");
}

TEST(JsonTest, ReferencesStayValidWhileMembersAreAdded) {
  Json value;
  Json& first = value["m"];
  for (int i = 0; i < 1000; ++i) value[std::to_string(i)] = i;
  first = "here";
  EXPECT_EQ(value.at("m"), "here");
}

TEST(JsonTest, APartMayReplaceTheWhole) {
  Json value = {{"a", {{"b", {1, 2}}}}};
  value = value.at("a");
  EXPECT_EQ(value.dump(), R"({"b":[1,2]})");
  value = std::move(value["b"]);
  EXPECT_EQ(value.dump(), "[1,2]");
  value = value[1];
  EXPECT_EQ(value, 2);
}

TEST(JsonTest, ReadsTypesAndNamesWhatIsOther) {
  const Json value = Json::parse(R"({"n": 3, "f": 2.5, "t": "x", "l": [1, 2], "p": ["a", 0.5], "b": true})");
  EXPECT_EQ(value.at("n").get<int>(), 3);
  EXPECT_EQ(value.at("f").get<float>(), 2.5F);
  EXPECT_EQ(value.at("f").get<int>(), 2);
  EXPECT_THAT(value.at("l").get<std::vector<double>>(), ElementsAre(1, 2));
  EXPECT_EQ((value.at("p").get<std::pair<std::string, double>>()), std::pair(std::string("a"), 0.5));
  EXPECT_TRUE(value.at("b").get<bool>());
  EXPECT_EQ(value.value("t", ""), "x");
  EXPECT_EQ(value.value("none", 7), 7);
  EXPECT_EQ(json_error_of([&] { (void)value.at("none"); }), "no member 'none'");
  EXPECT_EQ(json_error_of([&] { (void)value.at("t").get<int>(); }), "the value must be a number, not string");
  EXPECT_EQ(json_error_of([&] { (void)value.at("n").get<std::string>(); }),
            "the value must be a string, not number");
  EXPECT_EQ(json_error_of([&] { (void)value.at("n").get<bool>(); }),
            "the value must be a boolean, not number");
  EXPECT_EQ(json_error_of([&] { (void)value.at("l").at(2); }), "no element 2 in an array of 2");
  EXPECT_EQ(json_error_of([&] { (void)value.at("n").at("x"); }), "the value must be an object, not number");
  EXPECT_EQ(json_error_of([&] { Json(3).push_back(1); }), "the value must be an array, not number");
}

TEST(JsonTest, RefusesWhatIsNotOneValue) {
  for (const char* const text : {"", "{", "[1,]", "{\"a\":1} 2", "nul", "{a: 1}", "\"\xff\""}) {
    EXPECT_FALSE(Json::try_parse(text)) << text;
    EXPECT_THAT(json_error_of([&] { Json::parse(text); }), HasSubstr("parse error")) << text;
  }
  EXPECT_TRUE(Json::try_parse("null"));
}

TEST(JsonTest, DepthAndNamesFollowTheRules) {
  const auto nested = [](size_t depth) { return std::string(depth, '[') + std::string(depth, ']'); };
  EXPECT_EQ(Json::parse(nested(256)).dump(), nested(256));
  EXPECT_EQ(json_error_of([&] { Json::parse(nested(257)); }), "nested more than 256 deep");
  EXPECT_EQ(json_error_of([&] { Json::parse(std::string(1 << 20, '[')); }), "nested more than 256 deep");
  EXPECT_EQ(json_error_of([&] { Json::parse(nested(5), {.max_depth = 4}); }), "nested more than 4 deep");
  EXPECT_EQ(Json::parse(R"({"a":[{"b":[1]},2],"c":3})", {.max_depth = 2, .drop_deeper = true}).dump(),
            R"({"a":[2],"c":3})");
  EXPECT_EQ(Json::parse(R"({"a":1,"a":2})").dump(), R"({"a":2})");
  EXPECT_EQ(json_error_of([] { Json::parse(R"({"b":{"a":1,"c":2,"a":2}})", {.unique_names = true}); }),
            "duplicate name: a");
}

TEST(JsonTest, TextThatIsNotUtf8IsAnErrorOrReplaced) {
  const Json value = {{"x", "\xff"}};
  EXPECT_THAT(json_error_of([&] { (void)value.dump(); }), HasSubstr("UTF-8"));
  EXPECT_EQ(value.dump({.replace_invalid = true}), "{\"x\":\"\uFFFD\"}");
  std::ostringstream out;
  out << value;
  EXPECT_EQ(out.str(), "{\"x\":\"\uFFFD\"}");
}

}  // namespace
}  // namespace lockstep
