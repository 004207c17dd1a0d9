#include "config/flag_words.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <CLI/CLI.hpp>

namespace lockstep::config {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;

TEST(FlagWordsTest, AnEmptyValueOfASubcommandTakesNoOtherWord) {
  CLI::App app;
  CLI::App* command = app.add_subcommand("list", "");
  std::string folder, name = "default";
  int count = 0;
  command->add_option("folder", folder);
  command->add_option("--name", name);
  command->add_option("--count", count);
  parse_words(app, {"list", "--name=", "here", "--count", "3"});
  EXPECT_EQ(name, "");
  EXPECT_EQ(folder, "here");
  EXPECT_EQ(count, 3);
  EXPECT_THAT(
      [&] {
        parse_words(app, {"list", "--count=", "3"});
      },
      ThrowsMessage<CLI::ParseError>(HasSubstr("--count=: there is no value")));
}

TEST(FlagWordsTest, WordsOfAnotherProgramStayAsTheyAre) {
  CLI::App app;
  app.prefix_command();
  std::string name = "default";
  std::vector<int> counts;
  std::vector<std::string> modules;
  app.add_option("--name", name);
  app.add_option("--counts", counts);
  app.add_option("--module", modules)->allow_extra_args(false);
  parse_words(app, {"--counts", "1", "2", "--module", "m", "--name=", "./train", "--name=", "x"});
  EXPECT_EQ(name, "");
  EXPECT_THAT(counts, ElementsAre(1, 2));
  EXPECT_THAT(app.remaining(), ElementsAre("./train", "--name=", "x"));
  EXPECT_THAT(
      [&] {
        parse_words(app, {"--module=", "./train"});
      },
      ThrowsMessage<CLI::ParseError>(HasSubstr("--module=: there is no value")));
}

}  // namespace
}  // namespace lockstep::config
