#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <set>

#include "base/check.h"
#include "cli/commands.h"

namespace lockstep::cli {
namespace {

using config::OptionUsage;

bool is_long(const std::string& spelling) { return spelling.starts_with("--"); }

// Of --log-dir and --log_dir the shell offers only the first.
bool is_offered(const std::string& spelling) { return spelling.find('_') == std::string::npos; }

std::vector<std::string> offered(const CommandUsage& command) {
  std::vector<std::string> names;
  for (const OptionUsage& option : command.options) {
    if (!option.is_flag) continue;
    std::copy_if(option.spellings.begin(), option.spellings.end(), std::back_inserter(names), is_offered);
  }
  return names;
}

// What a word that is no flag may be: a subcommand, or a choice of the first argument. Empty: a file.
std::vector<std::string> words_of(const CommandUsage& command) {
  if (!command.subcommands.empty()) return command.subcommands;
  const auto argument = std::find_if(command.options.begin(), command.options.end(),
                                     [](const OptionUsage& option) { return !option.is_flag; });
  return argument == command.options.end() ? std::vector<std::string>{} : argument->choices;
}

std::string joined(const std::vector<std::string>& words) { return fmt::format("{}", fmt::join(words, " ")); }

// "'bench:data'|'bench:scaling'": patterns of `case` that match "COMMAND:WORD".
std::string patterns(const std::string& command, const std::vector<std::string>& words) {
  std::vector<std::string> result;
  for (const std::string& word : words) result.push_back(fmt::format("'{}:{}'", command, word));
  return fmt::format("{}", fmt::join(result, "|"));
}

// The pattern of every group with each of its commands.
std::string command_patterns(const std::vector<CommandUsage>& commands) {
  std::vector<std::string> result;
  for (const CommandUsage& command : commands) {
    if (!command.subcommands.empty()) result.push_back(patterns(command.name, command.subcommands));
  }
  return fmt::format("{}", fmt::join(result, "|"));
}

std::string bash_script(const std::vector<CommandUsage>& commands) {
  std::vector<std::string> with_value, ends;
  std::string lists;
  for (const CommandUsage& command : commands) {
    // An unknown command, or a program: the other words are its arguments.
    if (!command.subcommands.empty() || command.starts_program) {
      ends.push_back(fmt::format("'{}:'*", command.name));
    }
    lists += fmt::format("    '{}:-') list='{}' ;;\n", command.name, joined(offered(command)));
    if (const auto words = words_of(command); !words.empty()) {
      lists += fmt::format("    '{}:') list='{}' ;;\n", command.name, joined(words));
    }
    for (const OptionUsage& option : command.options) {
      if (!option.is_flag || !option.takes_value) continue;
      const std::string pattern = patterns(command.name, option.spellings);
      with_value.push_back(pattern);
      if (!option.choices.empty()) {
        lists += fmt::format("    {}) list='{}' ;;\n", pattern, joined(option.choices));
      }
    }
  }
  return fmt::format(R"(# bash completion of `lockstep`.
_lockstep() {{
  local line=${{COMP_LINE:0:COMP_POINT}} words word current command='' flag='' prefix='' list i
  COMPREPLY=()
  # COMP_WORDS are also split at ':' and '=', which values may hold.
  read -ra words <<<"$line"
  [[ $line != *[[:space:]] ]] || words+=('')
  ((${{#words[@]}} > 1)) || return
  current=${{words[-1]}}
  for ((i = 1; i < ${{#words[@]}} - 1; ++i)); do
    word=${{words[i]}}
    if [[ -n $flag ]]; then
      flag=''
      continue
    fi
    case $command:$word in
      {commands}) command=${{command:+$command }}$word ;;
      *:--) return ;;
      {with_value}) flag=$word ;;
      *:-?*) ;;
      {ends}) return ;;
    esac
  done
  if [[ -z $flag && $current == --*=* ]]; then
    flag=${{current%%=*}} current=${{current#*=}}
    [[ $COMP_WORDBREAKS == *=* ]] || prefix=$flag=
  elif [[ -z $flag && $current == -* ]]; then
    flag=-
  fi
  case $command:$flag in
{lists}    *) return ;;
  esac
  mapfile -t COMPREPLY < <(compgen -P "$prefix" -W "$list" -- "$current")
}}
complete -o default -F _lockstep lockstep
)",
                     fmt::arg("commands", command_patterns(commands)),
                     fmt::arg("with_value", fmt::join(with_value, "|")),
                     fmt::arg("ends", fmt::join(ends, "|")), fmt::arg("lists", lists));
}

// Escapes a text in single quotes.
std::string single_quoted(const std::string& text) {
  std::string result;
  for (const char c : text) result += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return result;
}

// Escapes a text for a specification of zsh's _arguments in single quotes.
std::string zsh_text(const std::string& text) {
  std::string result;
  for (const char c : text) {
    if (c == '[' || c == ']' || c == ':' || c == '\\') result += '\\';
    result += c;
  }
  return single_quoted(result);
}

std::string zsh_action(const OptionUsage& option) {
  return option.choices.empty() ? "_default" : fmt::format("({})", joined(option.choices));
}

std::string zsh_specifications(const CommandUsage& command) {
  std::string lines;
  bool has_argument = false;
  for (const OptionUsage& option : command.options) {
    if (!option.is_flag) {
      lines += fmt::format("        '{}:{}:{}' \\\n", option.repeats ? "*" : "",
                           zsh_text(option.spellings.front()), zsh_action(option));
      has_argument = true;
      continue;
    }
    const std::string action = option.takes_value ? ":value:" + zsh_action(option) : "";
    for (const std::string& name : option.spellings) {
      // "!": accepted, but not offered. "*": may be repeated. "=" and "+": the value follows in the same word
      // or in the next.
      const char* hidden = is_offered(name) ? "" : "!";
      const char* repeated = option.repeats ? "*" : "";
      const char* joint = !option.takes_value ? "" : is_long(name) ? "=" : "+";
      lines += fmt::format("        '{}{}{}{}[{}]{}' \\\n", hidden, repeated, name, joint,
                           zsh_text(option.help), action);
    }
  }
  if (command.starts_program) {
    lines += "        '(-)1:program:_default' \\\n        '*:: : _normal' \\\n";
  } else if (!has_argument && command.subcommands.empty()) {
    lines += "        '*:file:_default' \\\n";
  }
  return lines.substr(0, lines.size() - 3);  // without the last " \" and the end of its line
}

std::string zsh_case(const CommandUsage& command, const std::vector<CommandUsage>& commands) {
  // "-A": no flags after the program.
  const std::string arguments = fmt::format(
      "_arguments -s -S {}\\\n{}", command.starts_program ? "-A '-*' " : "", zsh_specifications(command));
  if (command.subcommands.empty()) return fmt::format("    '{}')\n      {} ;;\n", command.name, arguments);
  std::string items;
  for (const std::string& word : command.subcommands) {
    const std::string name = command.name.empty() ? word : command.name + " " + word;
    const auto found = std::find_if(commands.begin(), commands.end(),
                                    [&](const CommandUsage& each) { return each.name == name; });
    items += fmt::format(" '{}:{}'", word, found == commands.end() ? "" : single_quoted(found->help));
  }
  return fmt::format(
      "    '{}')\n"
      "      if ((CURRENT > 2)); then\n        _default\n"
      "      elif [[ $words[CURRENT] == -* ]]; then\n        {}\n"
      "      else\n        commands=({} )\n        _describe -t commands command commands\n      fi ;;\n",
      command.name, arguments, items);
}

std::string zsh_script(const std::vector<CommandUsage>& commands) {
  std::string cases;
  for (const CommandUsage& command : commands) cases += zsh_case(command, commands);
  return fmt::format(R"(#compdef lockstep
# zsh completion of `lockstep`: a file _lockstep in a folder of fpath, or sourced.
_lockstep() {{
  local command=''
  local -a commands
  while ((CURRENT > 2)); do
    case $command:$words[2] in
      {commands}) command=${{command:+$command }}$words[2] ;;
      *) break ;;
    esac
    shift words
    ((CURRENT -= 1))
  done
  case $command in
{cases}  esac
}}
if [[ $funcstack[1] == _lockstep ]]; then
  _lockstep "$@"
else
  compdef _lockstep lockstep
fi
)",
                     fmt::arg("commands", command_patterns(commands)), fmt::arg("cases", cases));
}

// tcsh uses the first rule that matches. Its rules see the current word and the one before it, so all
// commands share their flags.
std::string tcsh_script(const std::vector<CommandUsage>& commands) {
  std::set<std::string> names;
  std::map<std::string, std::set<std::string>> choices;  // by flag
  std::set<std::string> takes_files;
  std::string words;
  for (const CommandUsage& command : commands) {
    for (const std::string& name : offered(command)) {
      if (is_long(name)) names.insert(name.substr(2));
    }
    for (const OptionUsage& option : command.options) {
      if (!option.is_flag || !option.takes_value) continue;
      for (const std::string& name : option.spellings) {
        choices[name].insert(option.choices.begin(), option.choices.end());
        if (option.choices.empty()) takes_files.insert(name);
      }
    }
    const auto list = words_of(command);
    if (list.empty()) continue;
    const std::string last = command.name.substr(command.name.rfind(' ') + 1);
    words += fmt::format(" \\\n  '{}/({})/'", last.empty() ? "p/1" : "n/" + last, joined(list));
  }
  std::string rules;
  for (const auto& [name, values] : choices) {
    const std::string list = takes_files.count(name) > 0 ? "f" : fmt::format("({})", fmt::join(values, " "));
    rules += fmt::format(" \\\n  'n/{}/{}/'", name, list);
    if (is_long(name)) rules += fmt::format(" \\\n  'c/{}=/{}/'", name, list);
  }
  return fmt::format("# tcsh completion of `lockstep`.\ncomplete lockstep{} \\\n  'c/--/({})/'{}\n", rules,
                     fmt::join(names, " "), words);
}

}  // namespace

const std::vector<std::string>& completion_shells() {
  static const std::vector<std::string> kShells{"bash", "zsh", "tcsh"};
  return kShells;
}

std::string completion_script(const std::string& shell, const std::vector<CommandUsage>& commands) {
  if (shell == "bash") return bash_script(commands);
  if (shell == "zsh") return zsh_script(commands);
  base::check_eq(shell, "tcsh", "a shell of completion_shells()");
  return tcsh_script(commands);
}

}  // namespace lockstep::cli
