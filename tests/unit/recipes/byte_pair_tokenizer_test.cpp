#include "recipes/byte_pair_tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/error.h>

#include <fstream>
#include <tuple>

#include "recipes/unicode_class.h"
#include "support/config_error.h"
#include "support/temporary_folder.h"

namespace lockstep::recipes {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using Pieces = std::vector<std::string_view>;

TEST(Gpt2PiecesTest, KeepsASpaceWithTheWordBehindIt) {
  EXPECT_THAT(gpt2_pieces("Hello world 42!?"), ElementsAre("Hello", " world", " 42", "!?"));
  EXPECT_THAT(gpt2_pieces("a  b"), ElementsAre("a", " ", " b"));
  EXPECT_THAT(gpt2_pieces("a\n\n b \t"), ElementsAre("a", "\n\n", " b", " \t"));
  EXPECT_THAT(gpt2_pieces("a\nb"), ElementsAre("a", "\n", "b"));
  EXPECT_EQ(gpt2_pieces(""), Pieces());
}

TEST(Gpt2PiecesTest, CutsContractionsOfLowerCase) {
  EXPECT_THAT(gpt2_pieces("we'll I'm it's'"), ElementsAre("we", "'ll", " I", "'m", " it", "'s", "'"));
  EXPECT_THAT(gpt2_pieces("WE'LL !'s 's"), ElementsAre("WE", "'", "LL", " !'", "s", " '", "s"));
}

TEST(Gpt2PiecesTest, KnowsUnicode) {
  EXPECT_THAT(gpt2_pieces("Grüße ٣½ naïve"), ElementsAre("Grüße", " ٣½", " naïve"));
  EXPECT_THAT(gpt2_pieces("a\u00A0\u3000b"), ElementsAre("a", "\u00A0", "\u3000", "b"));
  EXPECT_THAT(gpt2_pieces("e\u0301"), ElementsAre("e", "\u0301")) << "a combining accent is no letter";
}

TEST(Gpt2PiecesTest, LosesNoByteThatIsNotUtf8) {
  EXPECT_THAT(gpt2_pieces("a\xFF\xC3"
                          "b"),
              ElementsAre("a", "\xFF\xC3", "b"));
  EXPECT_EQ(first_character("\xED\xA0\x80").bytes, 1U) << "a surrogate";
  EXPECT_EQ(first_character("\xC0\x80").bytes, 1U) << "longer than needed";
  EXPECT_EQ(first_character("\xF4\x90\x80\x80").bytes, 1U) << "above U+10FFFF";
}

// GPT-2's names of bytes.
std::string name_of_byte(int byte) {
  int code = byte;
  if (!((byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE)) {
    code = 0x100 + (byte <= 0x20 ? byte : byte <= 0xA0 ? byte - 0x7F + 0x21 : 0x43);
  }
  if (code < 0x80) return std::string(1, static_cast<char>(code));
  return {static_cast<char>(0xC0 | code >> 6), static_cast<char>(0x80 | (code & 0x3F))};
}

class BytePairTokenizerTest : public testing::Test {
 protected:
  // Bytes are their own numbers; "he" is 256, "hel" 257, the end of a text 258.
  std::string vocabulary(const std::string& more = "") const {
    std::string text = "{";
    for (int byte = 0; byte < 256; ++byte) {
      const std::string name = name_of_byte(byte);
      text += "\"" + (name == "\"" || name == "\\" ? "\\" : std::string()) + name +
              "\": " + std::to_string(byte) + ", ";
    }
    return text + more + R"("he": 256, "hel": 257, "<|endoftext|>": 258})";
  }

  std::filesystem::path write(const std::string& name, const std::string& text) const {
    std::ofstream(folder_.path() / name) << text;
    return folder_.path() / name;
  }

  std::string refusal(const std::string& vocabulary_text, const std::string& merges) const {
    const std::vector<std::filesystem::path> files = {write("vocab.json", vocabulary_text),
                                                      write("merges.txt", merges)};
    return test::error_of([&] { BytePairTokenizer::read(files); });
  }

  test::TemporaryFolder folder_;
};

TEST_F(BytePairTokenizerTest, MergesTheLowestRankFirst) {
  write("vocab.json", vocabulary());
  write("merges.txt", "#version: 0.2\nh e\nhe l\n");
  const auto tokenizer = BytePairTokenizer::read({folder_.path()});
  EXPECT_THAT(tokenizer.encode("hello he"), ElementsAre(257, 'l', 'o', ' ', 256));
  EXPECT_EQ(tokenizer.bytes_of(257), "hel");
  EXPECT_EQ(tokenizer.bytes_of(0xC3), "\xC3");
  EXPECT_EQ(tokenizer.end_of_text(), 258);
  EXPECT_THAT(tokenizer.encode("he<|endoftext|>x"), ElementsAre(256, 258, 'x'));
  EXPECT_THAT(test::error_of([&] { tokenizer.bytes_of(259); }), HasSubstr("no token with the number 259"));
}

TEST(SpecialSearchTest, FindsTheFirstAndOfThoseAtOnePlaceTheLongest) {
  const SpecialSearch::Specials specials = {{"<a>", 1}, {"<a><b>", 2}, {"<b>", 3}, {"<never>", 4}};
  const std::string text = "x<b><a><b>y<a>";
  SpecialSearch search(specials, text);
  std::vector<std::tuple<size_t, size_t, int64_t>> found;
  for (size_t at = 0; const auto special = search.next(at); at = special->end) {
    found.emplace_back(special->begin, special->end, special->token);
  }
  EXPECT_THAT(found, ElementsAre(std::tuple(1, 4, 3), std::tuple(4, 10, 2), std::tuple(11, 14, 1)));
}

// A text of many documents, and tokens that are not in it or only at its end.
TEST(SpecialSearchTest, SearchesTheTextOnceForEachToken) {
  constexpr int64_t kDocuments = 100'000;
  std::string text;
  for (int64_t i = 0; i < kDocuments; ++i) text += "a<|endoftext|>";
  text += "<|last|>";
  const SpecialSearch::Specials specials = {{"<|endoftext|>", 1}, {"<|last|>", 2}, {"<|never|>", 3}};
  SpecialSearch search(specials, text);
  int64_t found = 0;
  for (size_t at = 0; const auto special = search.next(at); at = special->end) ++found;
  EXPECT_EQ(found, kDocuments + 1);
  EXPECT_EQ(search.searches(), found + std::ssize(specials)) << "once more than it is there";
}

TEST_F(BytePairTokenizerTest, RefusesFilesThatAreNoTokenizer) {
  EXPECT_THAT(refusal("[]", ""), HasSubstr("the vocabulary is no JSON object"));
  EXPECT_THAT(refusal("{\"a\": 1", ""), HasSubstr("vocab.json"));
  EXPECT_THAT(refusal("{\"a\": 0}", ""), HasSubstr("no token for the byte 0x00"));
  EXPECT_THAT(refusal(vocabulary("\"x y\": 300, "), ""), HasSubstr("'x y' stands for no bytes"));
  EXPECT_THAT(refusal(vocabulary("\"ab\": 97, "), ""), HasSubstr("two tokens have the number 97"));
  EXPECT_THAT(refusal(vocabulary("\"ab\": -1, "), ""), HasSubstr("'ab' has the number -1"));
  EXPECT_THAT(refusal(vocabulary(), "h e l\n"), HasSubstr("not 'h e l'"));
  EXPECT_THAT(refusal(vocabulary(), "l o\n"), HasSubstr("needs the token 'lo'"));
  EXPECT_THAT(test::error_of([&] { BytePairTokenizer::read({folder_.path() / "none"}); }),
              HasSubstr("cannot read the file of the tokenizer"));
  EXPECT_THAT(test::error_of([&] {
                BytePairTokenizer::read({write("tokenizer.json", R"({"model": {"type": "Unigram"}})")});
              }),
              HasSubstr("not a tokenizer like GPT-2's: model is not BPE"));
}

}  // namespace
}  // namespace lockstep::recipes
