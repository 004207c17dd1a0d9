#include <fmt/format.h>
#include <fmt/ranges.h>
#include <lockstep/version.h>

#include <algorithm>
#include <sstream>

#include "cli/commands.h"

namespace lockstep::cli {
namespace {

using config::OptionUsage;

// Escapes one line of text: '\' begins roff's escapes, and a '.' or ''' at its begin would be a request. A
// '-' of a command stays a '-' that can be copied.
std::string roff(const std::string& text) {
  std::string result = text.starts_with('.') || text.starts_with('\'') ? "\\&" : "";
  for (const char c : text) {
    if (c == '\\') {
      result += "\\e";
    } else if (c == '-') {
      result += "\\-";
    } else {
      result += c;
    }
  }
  return result;
}

// Lines that begin with spaces are examples, and stay lines.
std::string paragraphs(const std::string& text) {
  std::string result;
  bool in_example = false;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.empty()) continue;
    const bool is_example = line.front() == ' ';
    if (is_example != in_example) result += is_example ? ".PP\n.nf\n" : ".fi\n.PP\n";
    in_example = is_example;
    result += roff(line.substr(line.find_first_not_of(' '))) + "\n";
  }
  return result + (in_example ? ".fi\n" : "");
}

// Flags are printed with dashes only; each may be written with underscores too.
std::string option_text(const OptionUsage& option) {
  std::vector<std::string> names;
  for (const std::string& spelling : option.spellings) {
    if (spelling.find('_') == std::string::npos) names.push_back(fmt::format("\\fB{}\\fR", roff(spelling)));
  }
  std::string text = fmt::format(".TP\n{}{}\n", fmt::join(names, ", "),
                                 option.is_flag && option.takes_value ? " \\fIVALUE\\fR" : "");
  std::vector<std::string> facts;
  if (!option.choices.empty()) facts.push_back(fmt::format("values: {}", fmt::join(option.choices, ", ")));
  if (!option.default_value.empty()) facts.push_back("default: " + option.default_value);
  if (option.is_flag && option.required) facts.emplace_back("required");
  if (!option.variable.empty()) facts.push_back("variable: " + option.variable);
  text += roff(option.help);
  if (!facts.empty()) text += roff(fmt::format(" ({})", fmt::join(facts, "; ")));
  return text + "\n";
}

bool is_below(const CommandUsage& command, const CommandUsage& group) {
  return command.name.starts_with(group.name + " ");
}

// The options that all subcommands of a group have: they are printed once.
std::vector<OptionUsage> shared_options(const CommandUsage& group,
                                        const std::vector<CommandUsage>& commands) {
  std::vector<OptionUsage> shared;
  bool is_first = true;
  for (const CommandUsage& command : commands) {
    if (!is_below(command, group)) continue;
    if (is_first) shared = command.options;
    is_first = false;
    std::erase_if(shared, [&](const OptionUsage& option) {
      return std::find(command.options.begin(), command.options.end(), option) == command.options.end();
    });
  }
  return shared;
}

std::string synopsis(const CommandUsage& command) {
  std::string text = fmt::format("lockstep {}", command.name);
  text += command.subcommands.empty() ? " [OPTIONS]" : " COMMAND [OPTIONS]";
  for (const OptionUsage& option : command.options) {
    if (option.is_flag) continue;
    const std::string name = option.spellings.front() + (option.repeats ? "..." : "");
    text += option.required ? " " + name : " [" + name + "]";
  }
  if (command.starts_program) text += " [--] PROGRAM [ARGUMENT...]";
  return text;
}

constexpr std::pair<int, const char*> kStatuses[] = {
    {kExitSuccess, "success"},
    {kExitFailure, "the program failed, or a comparison found a difference"},
    {kExitUsage, "a flag, a variable or a file is wrong"},
    {kExitNodeLost, "a node was lost and too few are left"},
    {kExitInternal, "an error in Lockstep itself"},
    {kExitCommunication, "a peer or the network failed"},
    {kExitPreempted, "the job was asked to stop and saved its state: start it again"},
    {kExitRendezvous, "the launchers of a job did not come together"},
};

}  // namespace

std::string man_page(const std::vector<CommandUsage>& commands) {
  const CommandUsage& whole = commands.front();
  std::string text = fmt::format(".TH LOCKSTEP 1 \"\" \"Lockstep {}\" \"Lockstep\"\n", kVersion);
  text += fmt::format(".SH NAME\nlockstep \\- {}\n", roff(whole.help));
  text += ".SH SYNOPSIS\n.B lockstep\n.I COMMAND\n.RI [ OPTIONS ]\n";
  text +=
      ".SH DESCRIPTION\n" + paragraphs(whole.description) +
      "Every command has the flag \\fB\\-\\-help\\fR. A flag may be written with dashes or with underscores "
      "between its words.\n";
  for (const OptionUsage& option : whole.options) text += option_text(option);
  text += ".SH COMMANDS\n";
  std::vector<OptionUsage> printed = {};
  const CommandUsage* group = &whole;
  for (const CommandUsage& command : commands) {
    if (&command == &whole) continue;
    if (!is_below(command, *group)) printed.clear();
    text += fmt::format(".SS {}\n", roff(synopsis(command)));
    text += paragraphs(command.description.empty() ? command.help : command.description);
    std::vector<OptionUsage> own = command.options;
    if (!command.subcommands.empty()) {
      group = &command;
      printed = own = shared_options(command, commands);
      if (own.size() > 1) text += ".PP\nOptions of all of these commands:\n";
    } else {
      std::erase_if(own, [&](const OptionUsage& option) {
        return std::find(printed.begin(), printed.end(), option) != printed.end();
      });
    }
    for (const OptionUsage& option : own) {
      if (option.spellings.front() != "--help") text += option_text(option);
    }
  }
  text += ".SH EXIT STATUS\n";
  for (const auto& [status, meaning] : kStatuses) {
    text += fmt::format(".TP\n.B {}\n{}\n", status, roff(meaning));
  }
  return text;
}

}  // namespace lockstep::cli
