// The table of commands, and what is made of it: usage text, dispatch, help, completion and man page.
// Compiled once for each program: `lockstep` links the commands without LibTorch, `lockstep-tensor` links
// all.

#include "cli/commands.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "base/check.h"
#include "base/environment.h"
#include "base/file.h"
#include "base/nearest_name.h"
#include "cli/installation.h"

namespace lockstep::cli {
namespace {

// Prints a file of the installation, which `lockstep-tensor` printed when it was installed.
int print_installed(const std::filesystem::path& file) {
  const std::filesystem::path path = own_installation().prefix() / file;
  const std::optional<std::string> text = base::read_whole_file(path);
  if (!text) throw ConfigError("cli", fmt::format("cannot read '{}'", path.string()));
  std::fputs(text->c_str(), stdout);
  return kExitSuccess;
}

std::string parse_completion(int argc, const char* const* argv);
void parse_man(int argc, const char* const* argv);

int print_installed_completion(int argc, const char* const* argv) {
  const std::string shell = parse_completion(argc, argv);
  if (shell == "bash") return print_installed("share/bash-completion/completions/lockstep");
  if (shell == "zsh") return print_installed("share/zsh/site-functions/_lockstep");
  own_installation().tensor_program(base::Environment::of_process());  // throws what is missing
  return kExitFailure;
}

int print_installed_man(int argc, const char* const* argv) {
  parse_man(argc, argv);
  return print_installed("share/man/man1/lockstep.1");
}

#ifdef LOCKSTEP_LINKS_TORCH
#define LOCKSTEP_NEEDS_TORCH(function) true, function
#else
#define LOCKSTEP_NEEDS_TORCH(function) true, nullptr
#endif

constexpr Command kCommands[] = {
    {"run", "start a program once per rank, on one node or several", false, run_run},
    {"train", "train a model by a recipe: mnist, cifar100, ...", LOCKSTEP_NEEDS_TORCH(run_train)},
    {"generate", "continue a text with a trained GPT", LOCKSTEP_NEEDS_TORCH(run_generate)},
    {"init", "write a new project: program, batch script, README", false, run_init},
    {"slurm", "print or submit a batch script for a Slurm cluster", false, run_slurm},
    {"doctor", "report what this machine and this allocation can do", LOCKSTEP_NEEDS_TORCH(run_doctor),
     run_doctor_without_torch},
    {"bench", "measure collectives, data loading and scaling"},
    {"bench collectives", "measure time and bandwidth of collectives",
     LOCKSTEP_NEEDS_TORCH(run_bench_collectives)},
    {"bench data", "measure images per second, from bytes to batches", LOCKSTEP_NEEDS_TORCH(run_bench_data)},
    {"bench scaling", "compare numbers of ranks and CPUs for one training", false, run_bench_scaling},
    {"plan", "compute the memory that training a model needs", LOCKSTEP_NEEDS_TORCH(run_plan)},
    {"ckpt", "look at checkpoints, exchange weights with Python"},
    {"ckpt ls", "list the checkpoints of a run", LOCKSTEP_NEEDS_TORCH(run_ckpt_ls)},
    {"ckpt inspect", "print what a checkpoint or a weights file holds",
     LOCKSTEP_NEEDS_TORCH(run_ckpt_inspect)},
    {"ckpt verify", "compare every byte with the checksums", LOCKSTEP_NEEDS_TORCH(run_ckpt_verify)},
    {"ckpt export", "write weights to a file that Python opens", LOCKSTEP_NEEDS_TORCH(run_ckpt_export)},
    {"ckpt import", "make a checkpoint of Python's or DeepSpeed's files",
     LOCKSTEP_NEEDS_TORCH(run_ckpt_import)},
    {"ckpt diff", "compare two checkpoints or weights files", LOCKSTEP_NEEDS_TORCH(run_ckpt_diff)},
    {"report", "write a page about runs: loss, accuracy, speed", false, run_report},
    {"prefix", "print where Lockstep is installed, for CMake", false, run_prefix},
    {"completion", "print a script that completes commands in a shell", LOCKSTEP_NEEDS_TORCH(run_completion),
     print_installed_completion},
    {"man", "print the manual page", LOCKSTEP_NEEDS_TORCH(run_man), print_installed_man},
    {"help", "print the help of a command", false, run_help},
};

#undef LOCKSTEP_NEEDS_TORCH

constexpr const char* kDescription = "Distributed training for C++.";

bool asks_for_help(std::string_view word) { return word == "--help" || word == "-h"; }

const Command* find_command(std::string_view name) {
  const auto* found = std::find_if(std::begin(kCommands), std::end(kCommands),
                                   [&](const Command& command) { return command.name == name; });
  return found == std::end(kCommands) ? nullptr : found;
}

// The last words of the names of a group's commands; group "": the commands and groups of `lockstep`.
std::vector<std::string> subcommands_of(std::string_view group) {
  std::vector<std::string> names;
  for (const Command& command : kCommands) {
    const size_t space = command.name.rfind(' ');
    const bool is_inner = space != std::string_view::npos;
    if ((is_inner ? command.name.substr(0, space) : "") == group) {
      names.emplace_back(is_inner ? command.name.substr(space + 1) : command.name);
    }
  }
  return names;
}

bool is_group(const Command& command) { return !command.needs_torch && command.run == nullptr; }

// "lockstep bench", and "lockstep" for the empty name.
std::string whole_name(std::string_view name) {
  return name.empty() ? "lockstep" : fmt::format("lockstep {}", name);
}

std::string line_of(const Command& command) {
  return fmt::format("  {:<28} {}\n", whole_name(command.name), command.help);
}

std::string group_text(const Command& group) {
  std::string text = fmt::format("Usage: lockstep {} COMMAND [OPTIONS]\n\n", group.name);
  for (const Command& command : kCommands) {
    if (command.name.starts_with(std::string(group.name) + " ")) text += line_of(command);
  }
  return text + fmt::format("\nlockstep {} COMMAND --help lists the options.\n", group.name);
}

[[noreturn]] void refuse_unknown(std::string_view group, const std::string& word) {
  const auto nearest = base::nearest_name(word, subcommands_of(group));
  throw ConfigError(
      "cli",
      fmt::format("there is no command '{} {}'{}; {} --help lists the commands", whole_name(group), word,
                  nearest ? fmt::format("; did you mean '{}'?", *nearest) : "", whole_name(group)));
}

int execute_tensor_program(const TensorProgram& tensor, int argc, const char* const* argv) {
  const std::string program = tensor.program.string();
  if (tensor.torch_libraries) {
    const char* const before = std::getenv("LD_LIBRARY_PATH");
    const std::string after = before == nullptr || *before == '\0' ? "" : fmt::format(":{}", before);
    ::setenv("LD_LIBRARY_PATH", (tensor.torch_libraries->string() + after).c_str(), 1);
  }
  std::vector<std::string> words(argv, argv + argc);
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  ::execv(program.c_str(), arguments.data());
  throw ConfigError("cli", fmt::format("cannot execute '{}': {}", program, std::strerror(errno)));
}

int run_words(const std::vector<std::string>& words) {
  std::vector<const char*> argv;
  for (const std::string& word : words) argv.push_back(word.c_str());
  return run_command_line(static_cast<int>(argv.size()), argv.data());
}

// --- the table as data ---

config::OptionUsage help_flag() { return {.spellings = {"--help", "-h"}, .help = "print the commands"}; }

// Runs the command with --help, which throws its options as data. `words` are a subcommand that is no row.
void describe(const Command& command, const std::vector<std::string>& words, const std::string& help,
              std::vector<CommandUsage>& usages) {
  base::check(command.run != nullptr, "only a program that links all commands can describe them");
  const std::string first = whole_name(command.name);
  std::vector<const char*> argv{first.c_str()};
  for (const std::string& word : words) argv.push_back(word.c_str());
  argv.push_back("--help");
  CommandUsage usage{.name = std::string(command.name), .help = help};
  for (const std::string& word : words) usage.name += " " + word;
  try {
    command.run(static_cast<int>(argv.size()), argv.data());
  } catch (const config::OptionsHelp& options) {
    usage.description = options.description;
    usage.options = options.options;
    usage.starts_program = options.starts_program;
    usages.push_back(std::move(usage));
  } catch (const SubcommandsHelp& inner) {
    usage.options = {help_flag()};
    for (const auto& [name, text] : inner.subcommands) usage.subcommands.push_back(name);
    usages.push_back(std::move(usage));
    for (const auto& [name, text] : inner.subcommands) {
      std::vector<std::string> longer = words;
      longer.push_back(name);
      describe(command, longer, text, usages);
    }
  }
}

// Every command with its options, "" first, a group before its commands.
std::vector<CommandUsage> all_usages() {
  ::clearenv();  // variables set options: they would change the defaults that are printed, or fail
  std::vector<CommandUsage> usages = {
      {.name = "",
       .help = "distributed training for C++",
       .description = kDescription,
       .subcommands = subcommands_of(""),
       .options = {help_flag(),
                   {.spellings = {"--version"}, .help = "print version, commit, LibTorch and plugins"}}}};
  for (const Command& command : kCommands) {
    if (is_group(command)) {
      usages.push_back({.name = std::string(command.name),
                        .help = std::string(command.help),
                        .subcommands = subcommands_of(command.name),
                        .options = {help_flag()}});
    } else {
      describe(command, {}, std::string(command.help), usages);
    }
  }
  return usages;
}

}  // namespace

std::span<const Command> all_commands() { return kCommands; }

std::string usage_text() {
  std::string text = fmt::format("{}\n\n", kDescription);
  for (const Command& command : kCommands) text += line_of(command);
  return text + "  lockstep --version\n\nlockstep COMMAND --help prints more.\n";
}

int run_command_line(int argc, const char* const* argv) {
  if (argc < 2 || asks_for_help(argv[1])) throw HelpRequested(usage_text());
  if (std::string_view(argv[1]) == "--version") {
    throw HelpRequested(version_text(own_installation(), base::Environment::of_process()));
  }
  const Command* command = find_command(argv[1]);
  if (command == nullptr) refuse_unknown("", argv[1]);
  int used = 2;
  if (is_group(*command)) {
    const Command& group = *command;
    if (argc < 3) {
      throw ConfigError("cli", fmt::format("lockstep {} needs a command: {}", group.name,
                                           fmt::join(subcommands_of(group.name), ", ")));
    }
    if (asks_for_help(argv[2])) throw HelpRequested(group_text(group));
    command = find_command(fmt::format("{} {}", group.name, argv[2]));
    if (command == nullptr) refuse_unknown(group.name, argv[2]);
    used = 3;
  }
  auto* run = command->run;
  if (run == nullptr) {
    std::optional<TensorProgram> tensor;
    try {
      tensor = own_installation().tensor_program(base::Environment::of_process());
    } catch (const ConfigError&) {
      run = command->run_without_torch;
      if (run == nullptr) throw;
    }
    if (tensor) return execute_tensor_program(*tensor, argc, argv);
  }
  const std::string name = whole_name(command->name);
  std::vector<const char*> arguments{name.c_str()};
  arguments.insert(arguments.end(), argv + used, argv + argc);
  return run(static_cast<int>(arguments.size()), arguments.data());
}

int run_prefix(int argc, const char* const* argv) {
  config::OptionTable(
      "Prints the folder that Lockstep is installed in.\n"
      "\n"
      "  cmake -S . -B build -DCMAKE_PREFIX_PATH=\"$(lockstep prefix)\"",
      config::kNoVariables)
      .parse(argc, argv);
  std::printf("%s\n", own_installation().prefix().c_str());
  return kExitSuccess;
}

int run_help(int argc, const char* const* argv) {
  std::vector<std::string> words;
  config::OptionTable("Prints the help of a command, or lists all commands.", config::kNoVariables)
      .add_argument("COMMAND", words, "a command: run, or bench data")
      .parse(argc, argv);
  words.insert(words.begin(), "lockstep");
  words.emplace_back("--help");
  return run_words(words);
}

namespace {

std::string parse_completion(int argc, const char* const* argv) {
  std::string shell;
  config::OptionTable(
      "Prints a script that completes commands, flags and values of `lockstep` in a shell.\n"
      "\n"
      "  lockstep completion bash > ~/.local/share/bash-completion/completions/lockstep",
      config::kNoVariables)
      .add_argument("SHELL", shell, "the shell", {.choices = completion_shells(), .required = true})
      .parse(argc, argv);
  return shell;
}

void parse_man(int argc, const char* const* argv) {
  config::OptionTable(
      "Prints the manual page of `lockstep`, with the options of every command.\n"
      "\n"
      "  lockstep man | man -l -",
      config::kNoVariables)
      .parse(argc, argv);
}

}  // namespace

int run_completion(int argc, const char* const* argv) {
  const std::string shell = parse_completion(argc, argv);
  std::fputs(completion_script(shell, all_usages()).c_str(), stdout);
  return kExitSuccess;
}

int run_man(int argc, const char* const* argv) {
  parse_man(argc, argv);
  std::fputs(man_page(all_usages()).c_str(), stdout);
  return kExitSuccess;
}

}  // namespace lockstep::cli
