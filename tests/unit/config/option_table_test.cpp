#include "config/option_table.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/error.h>
#include <lockstep/json.h>

#include <cstdlib>
#include <limits>

namespace lockstep::config {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

struct Settings {
  std::optional<int> nprocs;
  std::string backend = "auto";
  int64_t max_iter = 7;
  bool verbose = true;

  OptionTable table() {
    OptionTable table("A program.");
    table.add("nprocs", nprocs, "ranks", {.minimum = 1})
        .add("backend", backend, "collectives", {.choices = {"auto", "gloo"}})
        .add("max_iter", max_iter, "epochs", {.minimum = 0})
        .add("verbose", verbose, "talk");
    return table;
  }

  void parse(std::vector<const char*> arguments) {
    arguments.insert(arguments.begin(), "prog");
    table().parse(static_cast<int>(arguments.size()), arguments.data());
  }
};

TEST(OptionTableTest, KeepsDefaultsWithoutFlags) {
  Settings settings;
  settings.parse({});
  EXPECT_EQ(settings.nprocs, std::nullopt);
  EXPECT_EQ(settings.max_iter, 7);
}

TEST(OptionTableTest, ReadsBothSpellings) {
  Settings settings;
  settings.parse({"--max_iter", "3", "--nprocs=2", "--no-verbose"});
  EXPECT_EQ(settings.max_iter, 3);
  EXPECT_EQ(settings.nprocs, 2);
  EXPECT_FALSE(settings.verbose);
  settings.parse({"--max-iter", "4"});
  EXPECT_EQ(settings.max_iter, 4);
}

TEST(OptionTableTest, ListsItsFlags) {
  std::string mode;
  bool quick = false;
  Settings settings;
  OptionTable table = settings.table();
  table.add("work_mode", mode, "how", {.choices = {"", "fast"}, .short_flag = "w", .aliases = {"the_mode"}})
      .add("quick", quick, "soon", {.negatable = false});
  std::vector<std::string> lines;
  for (const OptionUsage& option : table.usage()) {
    lines.push_back(fmt::format("{} {} ({}) {}", fmt::join(option.spellings, ","), option.takes_value,
                                fmt::join(option.choices, ","), option.help));
  }
  EXPECT_THAT(lines, testing::ElementsAre("--nprocs true () ranks", "--backend true (auto,gloo) collectives",
                                          "--max-iter,--max_iter true () epochs", "--verbose false () talk",
                                          "--no-verbose false () not: talk",
                                          "--work-mode,--work_mode,--the-mode,--the_mode,-w true (fast) how",
                                          "--quick false () soon", "--help,-h false () print the options"));
}

// CLI11 would take the word behind it.
TEST(OptionTableTest, AFlagWithNothingBehindItsEqualsSignTakesNoOtherWord) {
  Settings settings;
  std::string note = "default";
  std::optional<std::string> place = "default";
  std::optional<double> rate;
  FreeValues values;
  const auto parse = [&](std::vector<const char*> arguments) {
    arguments.insert(arguments.begin(), "prog");
    settings.table()
        .add("the_note", note, "text", {.short_flag = "t"})
        .add("place", place, "text")
        .add("rate", rate, "number")
        .add("values", values, "values")
        .parse(static_cast<int>(arguments.size()), arguments.data());
  };
  parse({"--the-note=", "--max_iter", "3"});
  EXPECT_EQ(note, "");
  EXPECT_EQ(settings.max_iter, 3);
  parse({"--the_note", "--place=", "--place="});
  EXPECT_EQ(note, "--place=") << "a value may look like a flag";
  EXPECT_EQ(place.value_or(""), "");
  parse({"-t", "x", "--the-note="});
  EXPECT_EQ(note, "");
  EXPECT_THAT([&] { parse({"--the-note=", "word"}); }, ThrowsMessage<ConfigError>(HasSubstr("word")));
  EXPECT_THAT([&] { parse({"--backend=", "gloo"}); }, ThrowsMessage<ConfigError>(HasSubstr("gloo")));
  EXPECT_THAT([&] { parse({"--backend="}); },
              ThrowsMessage<ConfigError>(HasSubstr("backend must be one of auto, gloo: ''")));
  for (const char* flag :
       {"--max-iter=", "--nprocs=", "--rate=", "--verbose=", "--no-verbose=", "--values="}) {
    EXPECT_THAT(
        [&] {
          parse({flag, "5"});
        },
        ThrowsMessage<ConfigError>(HasSubstr(std::string(flag) + ": there is no value")));
    EXPECT_THAT([&] { parse({flag}); },
                ThrowsMessage<ConfigError>(HasSubstr(std::string(flag) + ": there is no value")));
  }
}

TEST(OptionTableTest, AnEmptyConfigFileIsNone) {
  Settings settings;
  ::setenv("LOCKSTEP_CONFIG", "/no/such/file", 1);
  OptionTable table = settings.table();
  table.add_config_file();
  const std::vector<const char*> arguments = {"prog", "--config=", "--max_iter", "3"};
  EXPECT_NO_THROW(table.parse(static_cast<int>(arguments.size()), arguments.data()));
  ::unsetenv("LOCKSTEP_CONFIG");
  EXPECT_EQ(settings.max_iter, 3);
}

TEST(OptionTableTest, CommandLineWinsOverVariable) {
  ::setenv("LOCKSTEP_MAX_ITER", "11", 1);
  Settings settings;
  settings.parse({});
  EXPECT_EQ(settings.max_iter, 11);
  settings.parse({"--max_iter", "5"});
  EXPECT_EQ(settings.max_iter, 5);
  ::unsetenv("LOCKSTEP_MAX_ITER");
}

TEST(OptionTableTest, NamesTheBadValueAndWhatIsAllowed) {
  EXPECT_THAT(
      [] {
        Settings().parse({"--backend", "smoke"});
      },
      ThrowsMessage<ConfigError>("[config] backend must be one of auto, gloo: 'smoke'"));
  EXPECT_THAT(
      [] {
        Settings().parse({"--nprocs", "0"});
      },
      ThrowsMessage<ConfigError>("[config] nprocs must be at least 1: 0"));
  EXPECT_THAT([] { Settings().parse({"--nprocs", "two"}); }, ThrowsMessage<ConfigError>(HasSubstr("two")));
  EXPECT_THAT(
      [] {
        Settings().parse({"--nprocs", "99999999999999999999"});
      },
      ThrowsMessage<ConfigError>(HasSubstr("99999999999999999999")));
  EXPECT_THAT([] { Settings().parse({"--procs", "2"}); }, ThrowsMessage<ConfigError>(HasSubstr("--procs")));
}

TEST(OptionTableTest, ChecksValuesSetInCode) {
  Settings settings;
  settings.max_iter = -1;
  EXPECT_THAT([&] { settings.table().validate(); },
              ThrowsMessage<ConfigError>("[config] max_iter must be at least 0: -1"));
}

TEST(OptionTableTest, HelpListsEveryOptionWithItsVariable) {
  try {
    Settings().parse({"--help"});
    FAIL() << "no HelpRequested";
  } catch (const HelpRequested& help) {
    EXPECT_THAT(help.what(), HasSubstr("--max_iter,--max-iter"));
    EXPECT_THAT(help.what(), HasSubstr("LOCKSTEP_NPROCS"));
    EXPECT_THAT(help.what(), HasSubstr("(auto, gloo)"));
  }
}

TEST(OptionTableTest, PrintsTheResolvedValues) {
  Settings settings;
  settings.parse({"--nprocs", "3"});
  EXPECT_EQ(settings.table().to_json(),
            Json({{"nprocs", 3}, {"backend", "auto"}, {"max_iter", 7}, {"verbose", true}}));
}

struct Numbers {
  std::optional<int64_t> batch_size = 64;
  uint64_t seed = 0;
  double gamma = 0.5;

  void parse(std::vector<const char*> arguments) {
    OptionTable table("A program.");
    table.add("batch_size", batch_size, "samples", {.minimum = 1})
        .add("seed", seed, "of all", {.has_variable = false})
        .add("gamma", gamma, "decay", {.minimum = 0});
    arguments.insert(arguments.begin(), "prog");
    table.parse(static_cast<int>(arguments.size()), arguments.data());
  }
};

TEST(OptionTableTest, ANumberIsTakenAsItStandsOrNotAtAll) {
  const auto error_of = [](const char* flag, const char* value) -> std::string {
    try {
      Numbers().parse({flag, value});
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "none";
  };
  EXPECT_EQ(error_of("--seed", "18446744073709551615"), "none");
  EXPECT_THAT(error_of("--seed", "-1"),
              HasSubstr("--seed: must be a whole number that is not negative: '-1'"));
  EXPECT_THAT(error_of("--batch-size", "99999999999999999999"),
              HasSubstr("--batch_size: is out of range: '99999999999999999999'"));
  for (const char* text : {"1e3", "3.5", "two", "", "010x"}) {
    EXPECT_THAT(error_of("--batch-size", text),
                HasSubstr(std::string("must be a whole number: '") + text + "'"));
  }
  Numbers numbers;
  numbers.parse({"--batch-size", "010"});
  EXPECT_EQ(numbers.batch_size, 10) << "not octal";
  EXPECT_EQ(error_of("--gamma", "nan"), "[config] gamma must be at least 0: nan");
}

TEST(OptionTableTest, HelpShowsTheDefaultOfAnOptionThatMayBeUnset) {
  EXPECT_THAT([] { Numbers().parse({"--help"}); },
              ThrowsMessage<HelpRequested>(HasSubstr("--batch-size INT=64 ")));
}

struct Command {
  int count = 1;
  double seconds = 0.5;
  std::string name = "none";
  bool no_python = false;

  OptionTable table() {
    OptionTable table("A launcher.", "PET_");
    table.add("nproc_per_node", count, "workers", {.minimum = 1, .short_flag = "n"})
        .add("monitor_interval", seconds, "seconds")
        .add("rdzv_id", name, "name", {.has_variable = false})
        .add("no_python", no_python, "execute as it is", {.negatable = false});
    return table;
  }
};

TEST(OptionTableCommandTest, FlagsEndAtTheProgram) {
  Command command;
  OptionTable table = command.table();
  const auto rest = table.parse_command(
      "run", {"-n", "3", "--monitor-interval=2.5", "--no-python", "--rdzv_id", "x", "./prog", "-n", "9"});
  EXPECT_EQ(rest, (std::vector<std::string>{"./prog", "-n", "9"}));
  EXPECT_EQ(command.count, 3);
  EXPECT_EQ(command.seconds, 2.5);
  EXPECT_EQ(command.name, "x");
  EXPECT_TRUE(command.no_python);
  EXPECT_TRUE(table.given("rdzv_id"));
}

TEST(OptionTableCommandTest, DashesEndTheFlagsToo) {
  Command command;
  OptionTable table = command.table();
  EXPECT_EQ(table.parse_command("run", {"-n4", "--", "--prog"}), std::vector<std::string>{"--prog"});
  EXPECT_EQ(command.count, 4);
  EXPECT_FALSE(table.given("monitor_interval"));
}

TEST(OptionTableCommandTest, AnEmptyValueIsNotTheProgram) {
  Command command;
  OptionTable table = command.table();
  const auto rest = table.parse_command("run", {"--rdzv-id=", "./prog", "--rdzv-id=", "x"});
  EXPECT_EQ(rest, (std::vector<std::string>{"./prog", "--rdzv-id=", "x"}));
  EXPECT_EQ(command.name, "");
  EXPECT_THAT(
      [&] {
        table.parse_command("run", {"--nproc-per-node=", "./prog"});
      },
      ThrowsMessage<ConfigError>(HasSubstr("--nproc-per-node=: there is no value")));
}

TEST(OptionTableCommandTest, AnUnknownFlagIsNoProgram) {
  Command command;
  EXPECT_THROW(command.table().parse_command("run", {"--nproc", "2", "./prog"}), ConfigError);
  EXPECT_THROW(command.table().parse_command("run", {"-n", "0", "./prog"}), ConfigError);
  EXPECT_THROW(command.table().parse_command("run", {"-n"}), ConfigError);
  EXPECT_THROW(command.table().parse_command("run", {"--no_no_python", "./prog"}), ConfigError);
}

TEST(OptionTableCommandTest, VariablesHaveThePrefixUnlessTheyAreNotWanted) {
  ::setenv("PET_NPROC_PER_NODE", "5", 1);
  ::setenv("PET_RDZV_ID", "ignored", 1);
  Command command;
  OptionTable table = command.table();
  table.parse_command("run", {"./prog"});
  ::unsetenv("PET_NPROC_PER_NODE");
  ::unsetenv("PET_RDZV_ID");
  EXPECT_EQ(command.count, 5);
  EXPECT_TRUE(table.given("nproc_per_node"));
  EXPECT_EQ(command.name, "none");
}

// A table with an alias of an option, and a table that takes options from another one.
struct Named {
  int64_t max_iter = 7;
  double lr = 0.1;

  OptionTable table() {
    OptionTable others("");
    others.add("lr", lr, "learning rate").add("max_iter", max_iter, "not this one");
    OptionTable table("A program.");
    table.add("max_iter", max_iter, "epochs", {.aliases = {"epochs", "num_epochs"}})
        .add_all(others, {"max_iter"});
    return table;
  }

  void parse(std::vector<const char*> arguments) {
    arguments.insert(arguments.begin(), "prog");
    table().parse(static_cast<int>(arguments.size()), arguments.data());
  }
};

TEST(OptionTableTest, AnAliasIsAnotherNameOfTheSameOption) {
  Named named;
  named.parse({"--epochs", "3"});
  EXPECT_EQ(named.max_iter, 3);
  named.parse({"--num-epochs", "4", "--max-iter", "5"});
  EXPECT_EQ(named.max_iter, 5) << "the last one counts, whatever its name";
  OptionTable table = named.table();
  table.assign({{"epochs", 6}}, "'file'");
  EXPECT_EQ(named.max_iter, 6);
  EXPECT_THAT(
      [&] {
        table.assign({{"epochs", 6}, {"max_iter", 7}}, "'file'");
      },
      ThrowsMessage<ConfigError>("[config] 'file': 'epochs' and 'max_iter' are the same option: set one"));
  EXPECT_EQ(table.to_json(), Json({{"max_iter", 6}, {"lr", 0.1}})) << "printed under its own name";
}

TEST(OptionTableTest, AnIntegerOfAFileIsTakenAsItStandsOrNotAtAll) {
  Settings settings;
  uint64_t seed = 0;
  FreeValues values;
  OptionTable table = settings.table();
  table.add("seed", seed, "seed").add("values", values, "values");
  const uint64_t large = std::numeric_limits<uint64_t>::max();
  table.assign({{"seed", large}, {"values", {{"large", large}, {"small", -1}}}}, "'file'");
  EXPECT_EQ(seed, large);
  EXPECT_EQ(values.at("large"), FreeValue(static_cast<double>(large))) << "as the flag takes it";
  EXPECT_EQ(values.at("small"), FreeValue(int64_t{-1}));
  const auto error_of = [&](const char* name, const Json& value) {
    try {
      table.assign({{name, value}}, "'file'");
    } catch (const ConfigError& error) {
      return std::string(error.what());
    }
    return std::string("none");
  };
  EXPECT_THAT(error_of("max_iter", large),
              HasSubstr("max_iter must be a whole number from -9223372036854775808 to "));
  EXPECT_THAT(error_of("nprocs", int64_t{1} << 40),
              HasSubstr("nprocs must be a whole number from -2147483648"));
  EXPECT_THAT(error_of("seed", -1), HasSubstr("seed must be a whole number that is not negative: -1"));
}

TEST(OptionTableTest, OptionsOfAnotherTableSetItsFields) {
  Named named;
  named.parse({"--lr", "0.5"});
  EXPECT_EQ(named.lr, 0.5);
}

TEST(OptionTableTest, AnUnknownFlagIsAnsweredWithTheOneThatWasMeant) {
  EXPECT_THAT(
      [] {
        Named().parse({"--epoch", "3"});
      },
      ThrowsMessage<ConfigError>(HasSubstr("; did you mean '--epochs'?; prog --help")));
  EXPECT_THAT([] { Named().parse({"--max-itre=3"}); },
              ThrowsMessage<ConfigError>(HasSubstr("did you mean '--max-iter'?")));
  EXPECT_THAT([] { Named().parse({"--transformer"}); },
              ThrowsMessage<ConfigError>(testing::Not(HasSubstr("did you mean"))));
}

// The options of a command: arguments without a flag, lists, and no variables.
struct Export {
  std::string path;
  std::vector<std::string> others;
  std::string to;
  std::vector<int> ranks = {1, 2};
  std::vector<std::string> modules;
  std::vector<std::string> kinds = {"a"};

  OptionTable table() {
    OptionTable table("Exports.", kNoVariables);
    table.add_argument("PATH", path, "what to read", {.required = true})
        .add_argument("OTHER", others, "and these")
        .add("to_file", to, "what to write", {.required = true})
        .add("ranks", ranks, "numbers", {.several = true, .minimum = 1, .maximum = 8})
        .add("module", modules, "to load")
        .add("kinds", kinds, "of rows", {.choices = {"a", "b", "c"}, .several = true});
    return table;
  }

  void parse(std::vector<const char*> arguments) {
    arguments.insert(arguments.begin(), "export");
    table().parse(static_cast<int>(arguments.size()), arguments.data());
  }
};

TEST(OptionTableArgumentTest, WordsWithoutAFlagAreArgumentsInOrder) {
  Export command;
  command.parse({"in.pt", "--to-file", "out.pt", "b", "--module", "m", "c"});
  EXPECT_EQ(command.path, "in.pt");
  EXPECT_EQ(command.to, "out.pt");
  EXPECT_THAT(command.others, testing::ElementsAre("b", "c"));
  EXPECT_THAT(command.modules, testing::ElementsAre("m")) << "one value for each flag";
  Export dashed;
  dashed.parse({"--to_file", "x", "--", "--in"});
  EXPECT_EQ(dashed.path, "--in") << "behind -- no word is a flag";
}

TEST(OptionTableArgumentTest, WhatIsRequiredIsNamedIfItIsMissing) {
  EXPECT_THAT(
      [] {
        Export().parse({"--to-file", "x"});
      },
      ThrowsMessage<ConfigError>("[config] PATH is required; export --help lists the options"));
  EXPECT_THAT([] { Export().parse({"in.pt"}); },
              ThrowsMessage<ConfigError>(HasSubstr("--to_file is required; export --help")));
  EXPECT_THAT(
      [] {
        Export().parse({"in.pt", "--to-fiel", "x"});
      },
      ThrowsMessage<ConfigError>(HasSubstr("did you mean '--to-file'?")))
      << "not that it is missing";
}

TEST(OptionTableArgumentTest, ListsAreSeparatedByCommasAndRepeatedFlagsAddUp) {
  Export command;
  command.parse({"in", "--to-file=x", "--ranks", "1,2,4", "--module", "a,b", "--module=c", "--kinds", "b,c"});
  EXPECT_THAT(command.ranks, testing::ElementsAre(1, 2, 4));
  EXPECT_THAT(command.modules, testing::ElementsAre("a,b", "c")) << "not a list";
  EXPECT_THAT(command.kinds, testing::ElementsAre("b", "c"));
  command.parse({"in", "--to-file=x", "--ranks", "3", "--ranks=4"});
  EXPECT_THAT(command.ranks, testing::ElementsAre(3, 4));
}

TEST(OptionTableArgumentTest, EachValueOfAListIsCheckedAndErrorsNameTheFlag) {
  const auto error_of = [](const char* flag, const char* value) -> std::string {
    try {
      Export().parse({"in", "--to-file", "x", flag, value});
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "none";
  };
  EXPECT_EQ(error_of("--ranks", "1,0"), "[config] --ranks must be at least 1: 0");
  EXPECT_EQ(error_of("--ranks", "9,1"), "[config] --ranks must be at most 8: 9");
  EXPECT_THAT(error_of("--ranks", "1,two"), HasSubstr("--ranks: must be a whole number: 'two'"));
  for (const char* list : {"", ",", "1,", ",1", "1,,2"}) {
    EXPECT_THAT(error_of("--ranks", list), HasSubstr("--ranks: must be a whole number: ''")) << list;
    EXPECT_THAT(error_of("--kinds", list), HasSubstr("--kinds must be one of a, b, c")) << list;
  }
  EXPECT_EQ(error_of("--kinds", "a,d"),
            "[config] --kinds must be one of a, b, c, or a list of them separated by commas: 'd'");
}

TEST(OptionTableArgumentTest, AnEmptyValueTakesNoArgument) {
  Export command;
  command.parse({"--to-file=", "here", "--ranks", "3"});
  EXPECT_EQ(command.to, "");
  EXPECT_EQ(command.path, "here");
  EXPECT_THAT(command.ranks, testing::ElementsAre(3));
  for (const char* flag : {"--ranks=", "--module="}) {
    EXPECT_THAT(
        [&] {
          command.parse({"--to-file=x", flag, "3"});
        },
        ThrowsMessage<ConfigError>(HasSubstr(std::string(flag) + ": there is no value")));
  }
}

TEST(OptionTableArgumentTest, NoVariableSetsAnOptionOfATableWithoutPrefix) {
  ::setenv("RANKS", "7", 1);
  ::setenv("PATH_", "x", 1);
  Export command;
  command.parse({"in", "--to-file", "x"});
  ::unsetenv("RANKS");
  ::unsetenv("PATH_");
  EXPECT_THAT(command.ranks, testing::ElementsAre(1, 2));
}

TEST(OptionTableArgumentTest, HelpIsTextAndData) {
  Export command;
  command.modules = {"m"};
  try {
    command.parse({"--help"});
    FAIL() << "no help";
  } catch (const OptionsHelp& help) {
    EXPECT_THAT(help.what(), HasSubstr("Usage: export [OPTIONS] PATH"));
    EXPECT_EQ(help.description, "Exports.");
    EXPECT_FALSE(help.starts_program);
    std::vector<std::string> lines;
    for (const OptionUsage& option : help.options) {
      lines.push_back(fmt::format("{}{}{} {} [{}]", option.spellings.front(), option.required ? "!" : "",
                                  option.repeats ? "*" : "", option.is_flag, option.default_value));
    }
    EXPECT_THAT(lines, testing::ElementsAre("PATH! false []", "OTHER* false []", "--to-file! true []",
                                            "--ranks* true [1,2]", "--module* true [m]", "--kinds* true [a]",
                                            "--help true []"));
  }
  Command launcher;
  EXPECT_THAT([&] { launcher.table().parse_command("run", {"--help"}); },
              ThrowsMessage<OptionsHelp>(HasSubstr("Usage: run [OPTIONS] [--] PROGRAM [ARGUMENT...]\n")));
}

}  // namespace
}  // namespace lockstep::config
