#pragma once

#include <string>
#include <vector>

namespace lockstep::config {

// One flag as a shell completes it.
struct CompletionFlag {
  // As they are written: "--log-dir", "-n". The first one is offered; short ones are too.
  std::vector<std::string> spellings;
  bool takes_value = false;
  std::vector<std::string> choices;  // of the value; empty: files are offered
  std::string help;
};

// The shells that completion_script knows.
const std::vector<std::string>& completion_shells();

// A script with which `shell` completes `program command FLAG... PROGRAM ARGUMENT...`: flags,
// values that have choices, and files. Words after PROGRAM are not taken for flags; tcsh alone
// cannot tell them apart. `shell` is one of completion_shells().
std::string completion_script(const std::string& shell, const std::string& program,
                              const std::string& command, const std::vector<CompletionFlag>& flags);

}  // namespace lockstep::config
