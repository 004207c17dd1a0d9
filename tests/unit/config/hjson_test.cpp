#include "config/hjson.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>

#include "support/config_error.h"
#include "support/temporary_folder.h"

namespace lockstep::config {
namespace {

using Kind = HjsonNode::Kind;

HjsonNode parsed(const std::string& text) {
  const HjsonNode root = parse_hjson("{\n  a: " + text + "\n}", "t");
  return *root.find("a");
}

std::string error(const std::string& text) {
  return test::error_of([&] { parse_hjson(text, "f.json"); });
}

TEST(HjsonTest, ReadsWhatTheGuideOfLumiPrints) {
  const HjsonNode root = parse_hjson(
      "{\n  \"zero_optimization\": {\n    \"stage\": 1\n  },\n\n  \"fp16\": {\n    \"enabled\": false,\n  "
      "}\n}\n",
      "t");
  ASSERT_EQ(root.members.size(), 2u);
  EXPECT_EQ(root.find("zero_optimization")->find("stage")->text, "1");
  EXPECT_EQ(root.find("fp16")->find("enabled")->kind, Kind::kBool);
  EXPECT_EQ(root.find("fp16")->find("disabled"), nullptr);
}

TEST(HjsonTest, KnowsWhereEverythingStands) {
  const HjsonNode root = parse_hjson("{\n  \"\u00e9\": [1,\r\n 'x'],  b : true }", "t");
  const HjsonMember& first = root.members[0];
  EXPECT_EQ(first.place.line, 2);
  EXPECT_EQ(first.place.column, 3);
  EXPECT_EQ(first.value.place.column, 8) << "columns count characters";
  EXPECT_EQ(first.value.items[1].place.line, 3);
  EXPECT_EQ(first.value.items[1].place.column, 2);
  EXPECT_EQ(root.members[1].place.column, 9);
  EXPECT_EQ(root.members[1].value.place.column, 13);
}

TEST(HjsonTest, TellsWordsFromTexts) {
  for (const char* number : {"0", "-1.5", "1e5", "2.5E-3", "1.0"}) {
    EXPECT_EQ(parsed(number).kind, Kind::kNumber) << number;
    EXPECT_EQ(parsed(std::string(number) + " // five").text, number);
    EXPECT_EQ(parsed(std::string(number) + ", b: 1").text, number);
  }
  for (const char* text :
       {"01", "+1", ".5", "1.", "1e", "0x10", "1 2", "trueish", "True", "nan", "10:30", "auto"}) {
    EXPECT_EQ(parsed(text).kind, Kind::kText) << text;
    EXPECT_EQ(parsed(text).text, text);
    EXPECT_FALSE(parsed(text).quoted);
  }
  EXPECT_TRUE(parsed("true # yes").truth);
  EXPECT_TRUE(parsed("true\u00a0").truth) << "a page of the web leaves such spaces";
  EXPECT_EQ(parsed("null").kind, Kind::kNull);
  EXPECT_EQ(parsed("Adam, and more # no comment  ").text, "Adam, and more # no comment");
}

TEST(HjsonTest, ReadsTextsInQuotes) {
  EXPECT_EQ(parsed(R"("a\"b\\c\/\b\f\n\r\t\u00e9\ud83d\ude00'")").text,
            "a\"b\\c/\b\f\n\r\t\u00e9\U0001f600'");
  EXPECT_EQ(parsed(R"('it\'s "so"')").text, "it's \"so\"");
  EXPECT_EQ(parsed("\"5\"").kind, Kind::kText);
  EXPECT_TRUE(parsed("\"5\"").quoted);
}

TEST(HjsonTest, ReadsTextsOfSeveralLines) {
  EXPECT_EQ(parsed("'''one'''").text, "one");
  EXPECT_EQ(parsed("''''''").text, "");
  EXPECT_EQ(parsed("\n    '''\n    a\n      b\n   c\n\n    'd'\n    '''").text, "a\n  b\nc\n\n'd'");
  EXPECT_EQ(parsed("\r\n    '''\r\n    a\r\n    b'''").text, "a\nb");
}

TEST(HjsonTest, NeedsNeitherCommasNorBraces) {
  const HjsonNode root = parse_hjson("a: 1\nb: [1\n2\n3,]\nc: {d: \"x\" e: \"y\",}", "t");
  EXPECT_EQ(root.members.size(), 3u);
  EXPECT_EQ(root.find("b")->items.size(), 3u);
  EXPECT_EQ(root.find("c")->find("e")->text, "y");
  EXPECT_TRUE(parse_hjson("", "t").members.empty());
  EXPECT_TRUE(parse_hjson("# nothing\n/* at all */", "t").members.empty());
  EXPECT_EQ(parse_hjson("\xef\xbb\xbf{a: 1}", "t").members.size(), 1u);
}

struct Refusal {
  std::string text;
  const char* error;
};

TEST(HjsonTest, SaysWhatWasExpectedAndWhere) {
  const Refusal refusals[] = {
      {"{\"a\" 1}", "f.json:1:6: expected ':' after the key 'a', found '1}'"},
      {"{a 1}", "f.json:1:4: expected ':' after the key 'a', found '1}'"},
      {"{a b: 1}", "f.json:1:4: expected ':' after the key 'a', found 'b: 1}'"},
      {"{a, b: 1}", "f.json:1:3: expected ':' after the key 'a', found ', b: 1}'"},
      {"a", "f.json:1:2: expected ':' after the key 'a', found the end of the file"},
      {"{: 1}", "f.json:1:2: expected a key (an empty one needs quotes), found ': 1}'"},
      {"{a: 1,, b: 2}", "f.json:1:7: expected a key, found ', b: 2}'"},
      {"{a: }", "f.json:1:5: expected a value, found '}'"},
      {"{a:\n", "f.json:2:1: expected a value, found the end of the file"},
      {"{a:: 1}", "f.json:1:4: expected a value, found ': 1}'"},
      {"{a: [1,,2]}", "f.json:1:8: expected a value, found ',2]}'"},
      {"{a: [1, 2}", "f.json:1:10: expected a value, found '}'"},
      {"{\n a: {\n", "f.json:3:1: expected '}' for the '{' of line 2, column 5, found the end of the file"},
      {"{a: [", "f.json:1:6: expected ']' for the '[' of line 1, column 5, found the end of the file"},
      {"{a: on}\n",
       "f.json:2:1: expected '}' for the '{' of line 1, column 1, found the end of the file; the unquoted "
       "string at line 1, column 5 reaches to the end of its line"},
      {"{a: 1} b", "f.json:1:8: expected nothing more after the last '}', found 'b'"},
      {"a: 1\n}", "f.json:2:1: expected a key, found '}'"},
      {"[1]", "f.json:1:1: expected an object, found '[1]'"},
      {"{\n  a: 1\n  b: 2\n  'a': 3\n}",
       "f.json:4:3: duplicate key 'a': it is also at line 2, column 3; remove one of the two"},
      {"{a: \"b}\n", "f.json:1:5: the string has no end: expected \" before the end of the line"},
      {"{a: 'b", "f.json:1:5: the string has no end: expected ' before the end of the file"},
      {"{a: \"b\tc\"}", "f.json:1:7: a control character in a quoted string: 0x09"},
      {"{a: \"\\x41\"}",
       "f.json:1:6: expected one of \\\" \\' \\\\ \\/ \\b \\f \\n \\r \\t \\u, found '\\x41\"}'"},
      {"{a: \"\\u12g4\"}", "f.json:1:6: expected \\u with four hexadecimal digits, found '\\u12g4\"}'"},
      {"{a: \"\\ud800\"}", "f.json:1:6: half of a surrogate pair is not a character"},
      {"{a: \"\\ud800\\u0041\"}", "f.json:1:6: half of a surrogate pair is not a character"},
      {"{a: '''b\n", "f.json:1:5: the string has no end: expected '''"},
      {"{a: 1 /* b", "f.json:1:7: the comment has no end: expected '*/'"},
      {"{a: \xff}", "f.json:1:5: the text is not UTF-8: byte 0xff at offset 4"},
      {"{\n\"\xc3\xa9\xed\xa0\x80\"}", "f.json:2:3: the text is not UTF-8: byte 0xed at offset 5"},
      {std::string("{a\0: 1}", 7), "f.json:1:3: the text contains a NUL: at offset 2"},
      {"\xff\xfe{", "f.json:1:1: the text is UTF-16: save it as UTF-8"},
      {std::string(65, '{'),
       "f.json:1:2: expected a key, found '{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{...'"},
      {"{a: " + std::string(64, '['), "f.json:1:68: nested more than 64 deep"},
      {std::string(kMaxTextBytes + 1, ' '), "f.json:1:1: the text has 1048577 bytes, the limit is 1048576"},
  };
  for (const Refusal& refusal : refusals) {
    EXPECT_EQ(error(refusal.text), "[config] " + std::string(refusal.error)) << refusal.text.substr(0, 100);
  }
}

TEST(HjsonTest, ReadsAHugeObjectInReasonableTime) {
  std::string text = "{";
  for (int i = 0; text.size() < kMaxTextBytes - 100; ++i) text += "k" + std::to_string(i) + ":1,";
  EXPECT_GT(parse_hjson(text + "}", "t").members.size(), 50'000u);
}

TEST(HjsonSourceTest, TakesAPathOrBase64) {
  const test::TemporaryFolder folder;
  const std::string path = folder.path() / "ds.json";
  std::ofstream(path) << "{a: 1}";
  EXPECT_EQ(read_hjson_argument(path).text, "{a: 1}");
  EXPECT_EQ(read_hjson_argument(path).name, path);
  for (const char* base64 : {"eyJhIjogIj8_fiJ9", "e2E6IDF9Cg==", "e2E6IDF9Cg"}) {
    EXPECT_EQ(read_hjson_argument(base64).name, "base64");
    EXPECT_EQ(parse_hjson(read_hjson_argument(base64).text, "t").members.size(), 1u) << base64;
  }
}

TEST(HjsonSourceTest, SaysWhatItCannotRead) {
  const test::TemporaryFolder folder;
  const std::string path = folder.path() / "ds.json";
  const auto refusal = [](const std::string& argument) {
    return test::error_of([&] { read_hjson_argument(argument); });
  };
  EXPECT_EQ(refusal("ds_config.json"),
            "[config] neither a configuration file nor a text in URL-safe base64: 'ds_config.json'");
  // These two are valid base64, but do not decode to text.
  EXPECT_EQ(refusal("ds_config"),
            "[config] neither a configuration file nor a text in URL-safe base64: 'ds_config'");
  EXPECT_EQ(refusal("config"),
            "[config] neither a configuration file nor a text in URL-safe base64: 'config'");
  EXPECT_EQ(refusal(""),
            "[config] expected a configuration file or its text in base64: the argument is empty");
  EXPECT_EQ(refusal(folder.path()), "[config] cannot read the configuration file '" + folder.path().string() +
                                        "': not a regular file");
  EXPECT_EQ(test::error_of([&] { read_hjson_file(path); }),
            "[config] cannot read the configuration file '" + path + "': No such file or directory");
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  EXPECT_EQ(refusal(path), "[config] cannot read the configuration file '" + path + "': not a regular file");
}

}  // namespace
}  // namespace lockstep::config
