#pragma once

#include <string>
#include <vector>

namespace lockstep::config {

// A flag of a command, for shell completion.
struct CompletionFlag {
  // "--log-dir", "-n". The shell offers the first one and the short ones.
  std::vector<std::string> spellings;
  bool takes_value = false;
  std::vector<std::string> choices;  // of the value; empty: the shell offers files
  std::string help;
};

// The shells that completion_script() supports.
const std::vector<std::string>& completion_shells();

// A script for `shell`, one of completion_shells(), that completes `program command FLAG... PROGRAM
// ARGUMENT...`: flags, values with choices, and files. Words after PROGRAM are not completed as flags,
// except by tcsh, which cannot distinguish them.
std::string completion_script(const std::string& shell, const std::string& program,
                              const std::string& command, const std::vector<CompletionFlag>& flags);

}  // namespace lockstep::config
