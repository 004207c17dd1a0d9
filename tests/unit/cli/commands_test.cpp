#include "cli/commands.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/version.h>

#include <algorithm>
#include <set>

namespace lockstep::cli {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::ThrowsMessage;

int run_line(std::vector<const char*> words) {
  words.insert(words.begin(), "lockstep");
  return run_command_line(static_cast<int>(words.size()), words.data());
}

TEST(CommandTableTest, TheUsageTextHasEveryRow) {
  const std::string text = usage_text();
  for (const Command& command : all_commands()) {
    EXPECT_THAT(text, HasSubstr(fmt::format("\n  lockstep {} ", command.name)));
    EXPECT_THAT(text, HasSubstr(fmt::format(" {}\n", command.help)));
  }
  for (const std::vector<const char*>& words : {std::vector<const char*>{}, {"--help"}, {"-h"}, {"help"}}) {
    EXPECT_THAT([&] { run_line(words); }, ThrowsMessage<HelpRequested>(text));
  }
  EXPECT_THAT(
      [] { run_line({"--version"}); },
      ThrowsMessage<HelpRequested>(testing::StartsWith(fmt::format("lockstep {}\ncommit ", kVersion))));
}

TEST(CommandTableTest, NamesAreUniqueAndEveryInnerCommandHasItsGroup) {
  std::set<std::string_view> names;
  for (const Command& command : all_commands()) {
    EXPECT_TRUE(names.insert(command.name).second) << command.name;
    const size_t space = command.name.find(' ');
    if (space != std::string_view::npos) EXPECT_EQ(names.count(command.name.substr(0, space)), 1U);
    EXPECT_EQ(command.help.find('\n'), std::string_view::npos) << command.name;
  }
}

TEST(CommandTableTest, EveryCommandWithoutLibTorchPrintsItsOptions) {
  int commands = 0;
  for (const Command& command : all_commands()) {
    if (command.run == nullptr || command.name == "help") continue;
    const std::string name = fmt::format("lockstep {}", command.name);
    const char* const words[] = {name.c_str(), "--help"};
    EXPECT_THAT([&] { command.run(2, words); },
                ThrowsMessage<config::OptionsHelp>(HasSubstr(fmt::format("Usage: {} [OPTIONS]", name))));
    ++commands;
  }
  EXPECT_EQ(commands, 6) << "run, init, slurm, bench scaling, report, prefix";
}

TEST(CommandTableTest, RunPrintsTheCompletionOfEveryShell) {
  try {
    run_line({"run", "--help"});
    FAIL() << "no help";
  } catch (const config::OptionsHelp& help) {
    const auto found = std::find_if(
        help.options.begin(), help.options.end(),
        [](const config::OptionUsage& option) { return option.spellings.front() == "--print-completion"; });
    ASSERT_NE(found, help.options.end());
    EXPECT_EQ(found->choices, completion_shells());
    EXPECT_TRUE(help.starts_program);
  }
}

TEST(CommandTableTest, AGroupListsItsCommands) {
  EXPECT_THAT(
      [] {
        run_line({"bench", "--help"});
      },
      ThrowsMessage<HelpRequested>(AllOf(HasSubstr("lockstep bench collectives "),
                                         HasSubstr("lockstep bench scaling "), Not(HasSubstr("ckpt")))));
  EXPECT_THAT(
      [] {
        run_line({"help", "ckpt"});
      },
      ThrowsMessage<HelpRequested>(HasSubstr("Usage: lockstep ckpt COMMAND")));
  EXPECT_THAT([] { run_line({"bench"}); },
              ThrowsMessage<ConfigError>("[cli] lockstep bench needs a command: collectives, data, scaling"));
}

TEST(CommandTableTest, HelpPrintsTheOptionsOfACommand) {
  EXPECT_THAT(
      [] {
        run_line({"help", "report"});
      },
      ThrowsMessage<HelpRequested>(HasSubstr("Usage: lockstep report [OPTIONS]")));
  EXPECT_THAT(
      [] {
        run_line({"help", "bench", "scaling"});
      },
      ThrowsMessage<HelpRequested>(HasSubstr("--cpus-per-rank")));
}

TEST(CommandTableTest, AnUnknownCommandIsAnsweredWithTheNearestOne) {
  EXPECT_THAT(
      [] {
        run_line({"tarin", "mnist"});
      },
      ThrowsMessage<ConfigError>("[cli] there is no command 'lockstep tarin'; did you mean 'train'?; "
                                 "lockstep --help lists the commands"));
  EXPECT_THAT(
      [] {
        run_line({"bench", "colectives"});
      },
      ThrowsMessage<ConfigError>("[cli] there is no command 'lockstep bench colectives'; did you mean "
                                 "'collectives'?; lockstep bench --help lists the commands"));
  EXPECT_THAT(
      [] {
        run_line({"help", "reprot"});
      },
      ThrowsMessage<ConfigError>(HasSubstr("did you mean 'report'?")));
  EXPECT_THAT([] { run_line({"frobnicate"}); }, ThrowsMessage<ConfigError>(Not(HasSubstr("did you mean"))));
}

// --- what is made of the table ---

std::vector<CommandUsage> usages() {
  const config::OptionUsage help{.spellings = {"--help", "-h"}, .help = "print the options"};
  const config::OptionUsage seed{.spellings = {"--seed"},
                                 .takes_value = true,
                                 .default_value = "0",
                                 .variable = "SEED",
                                 .help = "of all"};
  return {{.name = "",
           .help = "trains",
           .description = "Trains.",
           .subcommands = {"go", "make"},
           .options = {help}},
          {.name = "go",
           .help = "start a program",
           .description = "Starts it.\n\n  lockstep go ./x\n.dot \\ text",
           .options = {{.spellings = {"--on-stall", "--on_stall", "-s"},
                        .takes_value = true,
                        .choices = {"report", "abort"},
                        .help = "it's [this]: that"},
                       help},
           .starts_program = true},
          {.name = "make", .help = "make things", .subcommands = {"one", "two"}, .options = {help}},
          {.name = "make one",
           .help = "one",
           .description = "Makes one.",
           .options =
               {{.spellings = {"FILE"}, .is_flag = false, .takes_value = true, .required = true, .help = "f"},
                seed,
                help}},
          {.name = "make two",
           .help = "two",
           .description = "Makes two.",
           .options = {seed, {.spellings = {"--fast"}, .help = "soon"}, help}}};
}

TEST(ManPageTest, HasEveryCommandWithItsOptions) {
  const std::string page = man_page(usages());
  EXPECT_THAT(page, testing::StartsWith(".TH LOCKSTEP 1 "));
  EXPECT_THAT(page, HasSubstr(".SH NAME\nlockstep \\- trains\n"));
  EXPECT_THAT(page, HasSubstr(".SS lockstep go [OPTIONS] [\\-\\-] PROGRAM [ARGUMENT...]\n"));
  EXPECT_THAT(page, HasSubstr(".TP\n\\fB\\-\\-on\\-stall\\fR, \\fB\\-s\\fR \\fIVALUE\\fR\n"
                              "it's [this]: that (values: report, abort)\n"));
  EXPECT_THAT(page, HasSubstr(".SS lockstep make one [OPTIONS] FILE\nMakes one.\n.TP\n\\fBFILE\\fR\nf\n"));
  EXPECT_THAT(page,
              HasSubstr(".SS lockstep make two [OPTIONS]\nMakes two.\n.TP\n\\fB\\-\\-fast\\fR\nsoon\n"));
  for (const int status : {kExitSuccess, kExitUsage, kExitPreempted}) {
    EXPECT_THAT(page, HasSubstr(fmt::format(".B {}\n", status)));
  }
}

TEST(ManPageTest, OptionsOfAllCommandsOfAGroupArePrintedOnce) {
  const std::string page = man_page(usages());
  const size_t first = page.find("of all (default: 0; variable: SEED)\n");
  ASSERT_NE(first, std::string::npos);
  EXPECT_LT(first, page.find("lockstep make one"));
  EXPECT_EQ(page.find("of all (default", first + 1), std::string::npos);
}

TEST(ManPageTest, TextCannotBeARequest) {
  const std::string page = man_page(usages());
  EXPECT_THAT(page, HasSubstr("Starts it.\n.PP\n.nf\nlockstep go ./x\n.fi\n.PP\n\\&.dot \\e text\n"));
}

TEST(CompletionScriptTest, ListsCommandsFlagsAndChoices) {
  const std::string bash = completion_script("bash", usages());
  EXPECT_THAT(bash, HasSubstr("    ':') list='go make' ;;\n"));
  EXPECT_THAT(bash, HasSubstr("    'go:-') list='--on-stall -s --help -h' ;;\n"));
  EXPECT_THAT(bash, HasSubstr("    'go:--on-stall'|'go:--on_stall'|'go:-s') list='report abort' ;;\n"));
  EXPECT_THAT(bash, HasSubstr("    'make:') list='one two' ;;\n"));
  EXPECT_THAT(bash, HasSubstr("    'make two:-') list='--seed --fast --help -h' ;;\n"));
  const std::string zsh = completion_script("zsh", usages());
  EXPECT_THAT(zsh, HasSubstr("commands=( 'one:one' 'two:two' )"));
  EXPECT_THAT(zsh, HasSubstr("'--on-stall=[it'\\''s \\[this\\]\\: that]:value:(report abort)'"));
  const std::string tcsh = completion_script("tcsh", usages());
  EXPECT_THAT(tcsh, AllOf(HasSubstr("'p/1/(go make)/'"), HasSubstr("'n/make/(one two)/'"),
                          HasSubstr("'c/--/(fast help on-stall seed)/'")));
}

}  // namespace
}  // namespace lockstep::cli
