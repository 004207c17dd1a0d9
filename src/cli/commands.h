#pragma once

#include <lockstep/error.h>

#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "config/option_table.h"

namespace lockstep::cli {

// A command of `lockstep`: a row of the table in commands.cpp. Usage text, dispatch, shell completion and the
// man page come from it. The options of a command are those of the table that its function parses.
struct Command {
  std::string_view name = {};  // "run"; "bench data" is a command of the group "bench"
  std::string_view help = {};  // one line
  // LibTorch takes long to load: such a command is in the program lockstep-tensor.
  bool needs_torch = false;
  // argv[0] is the whole command, "lockstep bench data". Returns the exit status. Throws HelpRequested for
  // --help, and ConfigError. Null: a group, or a command that this program does not link.
  int (*run)(int argc, const char* const* argv) = nullptr;
  // What `lockstep` runs instead if no LibTorch was found; null: the command fails.
  int (*run_without_torch)(int argc, const char* const* argv) = nullptr;
};

// Every command and group, in the order of the usage text.
std::span<const Command> all_commands();

// Runs the command that the words name, or executes lockstep-tensor for it; argv[0] is this program. Returns
// the exit status. Throws what Command::run throws, and ConfigError for an unknown command.
int run_command_line(int argc, const char* const* argv);

// `lockstep --help`: every command with its help.
std::string usage_text();

// The help of a command whose subcommands are not rows of the table: their names and helps.
class SubcommandsHelp : public HelpRequested {
 public:
  SubcommandsHelp(const std::string& text, std::vector<std::pair<std::string, std::string>> subcommands)
      : HelpRequested(text), subcommands(std::move(subcommands)) {}

  std::vector<std::pair<std::string, std::string>> subcommands;
};

// What --help of a command prints, as data.
struct CommandUsage {
  std::string name = {};  // without "lockstep"; "" is `lockstep` itself
  std::string help = {};
  std::string description = {};                   // lines; those of examples begin with spaces
  std::vector<std::string> subcommands = {};      // the last words of their names; not empty: a group
  std::vector<config::OptionUsage> options = {};  // and arguments
  bool starts_program = false;
};

// The shells that completion_script() supports.
const std::vector<std::string>& completion_shells();
// A script for `shell`, one of completion_shells(), that completes `lockstep`: commands, flags, values with
// choices, and files. `commands` has `lockstep` itself first, and a group before its commands. Words after
// the program that a command starts are not completed as flags, except by tcsh, which cannot distinguish
// them; tcsh offers the flags of all commands.
std::string completion_script(const std::string& shell, const std::vector<CommandUsage>& commands);

// The manual page lockstep(1), for man(7), of the same commands.
std::string man_page(const std::vector<CommandUsage>& commands);

// The functions of the table. Each command is a source of its own, those of `ckpt` are in ckpt/.

int run_run(int argc, const char* const* argv);
int run_init(int argc, const char* const* argv);
int run_slurm(int argc, const char* const* argv);
int run_bench_scaling(int argc, const char* const* argv);
int run_report(int argc, const char* const* argv);
int run_prefix(int argc, const char* const* argv);
int run_doctor_without_torch(int argc, const char* const* argv);
int run_help(int argc, const char* const* argv);

int run_train(int argc, const char* const* argv);
int run_generate(int argc, const char* const* argv);
int run_doctor(int argc, const char* const* argv);
int run_bench_collectives(int argc, const char* const* argv);
int run_bench_data(int argc, const char* const* argv);
int run_plan(int argc, const char* const* argv);
int run_ckpt_ls(int argc, const char* const* argv);
int run_ckpt_inspect(int argc, const char* const* argv);
int run_ckpt_verify(int argc, const char* const* argv);
int run_ckpt_export(int argc, const char* const* argv);
int run_ckpt_import(int argc, const char* const* argv);
int run_ckpt_diff(int argc, const char* const* argv);
int run_completion(int argc, const char* const* argv);
int run_man(int argc, const char* const* argv);

}  // namespace lockstep::cli
