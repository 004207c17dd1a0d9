#include "launch/agent/worker_command.h"

#include <fmt/format.h>
#include <lockstep/error.h>
#include <unistd.h>

#include <filesystem>
#include <optional>

#include "base/program.h"

namespace lockstep::launcher {
namespace fs = std::filesystem;
namespace {

bool is_executable_file(const fs::path& path) {
  std::error_code ignored;
  return fs::is_regular_file(path, ignored) && ::access(path.c_str(), X_OK) == 0;
}

[[noreturn]] void refuse(const std::string& sentence) { throw ConfigError("run", sentence); }

std::string program_of(const std::string& name, const base::Environment& environment) {
  if (name.find('/') == std::string::npos) {
    if (const std::optional<std::string> found = base::find_program(name, environment)) return *found;
    if (is_executable_file(name)) {
      refuse(fmt::format("'{}' is not in PATH; write ./{} for the one in this folder", name, name));
    }
    refuse(fmt::format("the program is not in PATH and not in this folder: '{}'", name));
  }
  std::error_code ignored;
  if (fs::is_directory(name, ignored)) refuse(fmt::format("the program is a folder: '{}'", name));
  if (!fs::exists(name, ignored)) refuse(fmt::format("the program does not exist: '{}'", name));
  if (!is_executable_file(name)) {
    refuse(
        fmt::format("the program may not be executed: '{}' (chmod +x it, or use --run-path for a "
                    "Python script without .py)",
                    name));
  }
  return name;
}

std::string find_python(const base::Environment& environment) {
  const std::optional<std::string> given = environment.get("PYTHON_EXEC");
  if (given && !given->empty()) return program_of(*given, environment);
  if (const auto found = base::find_program("python3", environment)) return *found;
  if (const auto found = base::find_program("python", environment)) return *found;
  refuse("no python3 in PATH to run the script with; PYTHON_EXEC may name one");
}

WorkerCommand with_python(std::vector<std::string> before, const std::vector<std::string>& command,
                          const base::Environment& environment) {
  WorkerCommand result;
  result.program = find_python(environment);
  result.arguments = {result.program, "-u"};
  result.arguments.insert(result.arguments.end(), before.begin(), before.end());
  result.arguments.insert(result.arguments.end(), command.begin(), command.end());
  return result;
}

WorkerCommand python_script(const std::vector<std::string>& command, const base::Environment& environment) {
  std::error_code ignored;
  if (!fs::is_regular_file(command.front(), ignored)) {
    refuse(fmt::format("the script does not exist: '{}'", command.front()));
  }
  return with_python({}, command, environment);
}

}  // namespace

WorkerCommand resolve_command(CommandKind kind, const std::vector<std::string>& command,
                              const base::Environment& environment) {
  if (command.empty() || command.front().empty()) {
    refuse("which program? write it after the flags: lockstep run -n 2 ./program --its-flag");
  }
  if (kind == CommandKind::kModule) return with_python({"-m"}, command, environment);
  const bool is_python = kind == CommandKind::kDetect && fs::path(command.front()).extension() == ".py";
  if (is_python || kind == CommandKind::kScript) return python_script(command, environment);
  return {program_of(command.front(), environment), command};
}

}  // namespace lockstep::launcher
