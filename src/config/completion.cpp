#include "config/completion.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/check.h"

namespace lockstep::config {
namespace {

bool is_long(const std::string& spelling) { return spelling.starts_with("--"); }

// The spellings that the shell offers: of --log-dir and --log_dir only the first.
std::vector<std::string> offered(const std::vector<CompletionFlag>& flags) {
  std::vector<std::string> names;
  for (const CompletionFlag& flag : flags) {
    for (size_t i = 0; i < flag.spellings.size(); ++i) {
      if (i == 0 || !is_long(flag.spellings[i])) names.push_back(flag.spellings[i]);
    }
  }
  return names;
}

std::string bash_script(const std::string& program, const std::string& command,
                        const std::vector<CompletionFlag>& flags) {
  std::vector<std::string> with_value;
  std::string values;
  for (const CompletionFlag& flag : flags) {
    if (!flag.takes_value) continue;
    with_value.insert(with_value.end(), flag.spellings.begin(), flag.spellings.end());
    if (flag.choices.empty()) continue;
    values +=
        fmt::format("    {}) mapfile -t COMPREPLY < <(compgen -P \"$prefix\" -W '{}' -- \"$current\") ;;\n",
                    fmt::join(flag.spellings, "|"), fmt::join(flag.choices, " "));
  }
  return fmt::format(R"(# bash completion of `{program} {command}`.
_{program}_{command}() {{
  local line=${{COMP_LINE:0:COMP_POINT}} words current flag='' prefix='' i
  COMPREPLY=()
  # COMP_WORDS are also split at ':' and '=', which values may hold.
  read -ra words <<<"$line"
  [[ $line != *[[:space:]] ]] || words+=('')
  ((${{#words[@]}} > 2)) && [[ ${{words[1]}} == {command} ]] || return
  current=${{words[-1]}}
  for ((i = 2; i < ${{#words[@]}} - 1; ++i)); do
    if [[ -n $flag ]]; then
      flag=''
      continue
    fi
    case ${{words[i]}} in
      --) return ;;
      {with_value}) flag=${{words[i]}} ;;
      -?*) ;;
      *) return ;;  # the program: the other words are its arguments
    esac
  done
  if [[ -z $flag && $current == --*=* ]]; then
    flag=${{current%%=*}} current=${{current#*=}}
    [[ $COMP_WORDBREAKS == *=* ]] || prefix=$flag=
  fi
  case $flag in
    '') [[ $current != -* ]] || mapfile -t COMPREPLY < <(compgen -W '{offered}' -- "$current") ;;
{values}  esac
}}
complete -o default -F _{program}_{command} {program}
)",
                     fmt::arg("program", program), fmt::arg("command", command),
                     fmt::arg("with_value", fmt::join(with_value, "|")),
                     fmt::arg("offered", fmt::join(offered(flags), " ")), fmt::arg("values", values));
}

// Escapes a text for a specification of zsh's _arguments in single quotes.
std::string zsh_text(const std::string& text) {
  std::string result;
  for (const char c : text) {
    if (c == '\'') {
      result += "'\\''";
      continue;
    }
    if (c == '[' || c == ']' || c == ':' || c == '\\') result += '\\';
    result += c;
  }
  return result;
}

std::string zsh_specifications(const CompletionFlag& flag) {
  std::string action;
  if (flag.takes_value) {
    action =
        flag.choices.empty() ? ":value:_default" : fmt::format(":value:({})", fmt::join(flag.choices, " "));
  }
  std::string lines;
  for (size_t i = 0; i < flag.spellings.size(); ++i) {
    const std::string& name = flag.spellings[i];
    // "!": accepted, but not offered. "=" and "+": the value follows in the same word or in the next.
    const char* hidden = i > 0 && is_long(name) ? "!" : "";
    const char* joint = !flag.takes_value ? "" : is_long(name) ? "=" : "+";
    lines += fmt::format("    '{}{}{}[{}]{}' \\\n", hidden, name, joint, zsh_text(flag.help), action);
  }
  return lines;
}

std::string zsh_script(const std::string& program, const std::string& command,
                       const std::vector<CompletionFlag>& flags) {
  std::string specifications;
  for (const CompletionFlag& flag : flags) specifications += zsh_specifications(flag);
  return fmt::format(R"(#compdef {program}
# zsh completion of `{program} {command}`: a file _{program} in a folder of fpath, or sourced.
_{program}_{command}() {{
  _arguments -s -S -A '-*' \
{specifications}    '(-)1:program:_default' \
    '*:: : _normal'
}}
_{program}() {{
  if ((CURRENT > 2)) && [[ $words[2] == {command} ]]; then
    shift words
    ((CURRENT -= 1))
    _{program}_{command}
  else
    _default
  fi
}}
if [[ $funcstack[1] == _{program} ]]; then
  _{program} "$@"
else
  compdef _{program} {program}
fi
)",
                     fmt::arg("program", program), fmt::arg("command", command),
                     fmt::arg("specifications", specifications));
}

// tcsh uses the first rule that matches. Its rules see the current word and the one before it.
std::string tcsh_script(const std::string& program, const std::string& command,
                        const std::vector<CompletionFlag>& flags) {
  std::string rules;
  std::vector<std::string> names;
  for (const std::string& name : offered(flags)) {
    if (is_long(name)) names.push_back(name.substr(2));
  }
  for (const CompletionFlag& flag : flags) {
    for (const std::string& name : flag.spellings) {
      if (!flag.takes_value) continue;
      const std::string list = flag.choices.empty() ? "f" : fmt::format("({})", fmt::join(flag.choices, " "));
      rules += fmt::format(" \\\n  'n/{}/{}/'", name, list);
      if (is_long(name)) rules += fmt::format(" \\\n  'c/{}=/{}/'", name, list);
    }
  }
  return fmt::format("# tcsh completion of `{} {}`.\ncomplete {}{} \\\n  'c/--/({})/'\n", program, command,
                     program, rules, fmt::join(names, " "));
}

}  // namespace

const std::vector<std::string>& completion_shells() {
  static const std::vector<std::string> kShells{"bash", "zsh", "tcsh"};
  return kShells;
}

std::string completion_script(const std::string& shell, const std::string& program,
                              const std::string& command, const std::vector<CompletionFlag>& flags) {
  if (shell == "bash") return bash_script(program, command, flags);
  if (shell == "zsh") return zsh_script(program, command, flags);
  base::check_eq(shell, "tcsh", "a shell of completion_shells()");
  return tcsh_script(program, command, flags);
}

}  // namespace lockstep::config
