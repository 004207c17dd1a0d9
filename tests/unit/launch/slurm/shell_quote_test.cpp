#include "launch/slurm/shell_quote.h"

#include <gtest/gtest.h>
#include <lockstep/error.h>

#include "base/program.h"

namespace lockstep::launcher {
namespace {

TEST(ShellQuoteTest, LeavesPlainWordsAlone) {
  EXPECT_EQ(shell_quote("--lr=0.1"), "--lr=0.1");
  EXPECT_EQ(shell_quote("./a/b-c_d.e"), "./a/b-c_d.e");
  EXPECT_EQ(shell_quote(""), "''");
  EXPECT_EQ(shell_quote("a b"), "'a b'");
  EXPECT_EQ(shell_quote("it's"), R"('it'\''s')");
}

// A real shell hands back every byte.
TEST(ShellQuoteTest, AShellReadsTheSameBytes) {
  std::string all_bytes;
  for (int c = 1; c < 256; ++c) all_bytes += static_cast<char>(c);
  for (const std::string& text :
       {std::string("$HOME"), std::string("$(echo x)"), std::string("`echo x`"), std::string("a\nb\n\nc"),
        std::string("'\"'\"\\''"), std::string("*"), std::string("~"), std::string("#x"), std::string("!x"),
        std::string("\\"), std::string("-n"), std::string("gr\u00fc\u00df \u4e16\u754c"),
        std::string("a;b|c&d>e"), all_bytes}) {
    base::ProcessOptions options;
    options.program = "/bin/bash";
    options.arguments = {"bash", "-c", "printf '%s' " + shell_quote(text)};
    const auto result = base::run_program(options, std::chrono::minutes(1));
    ASSERT_TRUE(result);
    EXPECT_EQ(result->output, text);
  }
}

TEST(DirectiveQuoteTest, EscapesWhatSbatchReads) {
  EXPECT_EQ(directive_quote("sine"), "sine");
  EXPECT_EQ(directive_quote("my job # 1"), "\"my job # 1\"");
  EXPECT_EQ(directive_quote(R"(a"b\c)"), R"("a\"b\\c")");
  EXPECT_EQ(directive_quote("$HOME `id` 'x'"), "\"$HOME `id` 'x'\"");
}

TEST(DirectiveQuoteTest, CannotHoldANewline) { EXPECT_THROW(directive_quote("a\nb"), InternalError); }

}  // namespace
}  // namespace lockstep::launcher
