#include "cli/installation.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <lockstep/error.h>
#include <lockstep/version.h>

#include <algorithm>
#include <sstream>

#include "base/file.h"
#include "base/folder.h"
#include "base/number.h"
#include "base/process.h"
#include "cli/build_info.h"

namespace lockstep::cli {
namespace fs = std::filesystem;
namespace {

constexpr char kTorchVariable[] = "LOCKSTEP_TORCH_DIR";
constexpr char kTensorProgram[] = "lockstep-tensor";

bool is_there(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

std::vector<fs::path> folders_in(const fs::path& folder, std::string_view prefix) {
  std::vector<fs::path> found;
  std::error_code ignored;
  for (const base::FolderEntry& entry : base::list_folder(folder, ignored)) {
    if (entry.path().filename().string().starts_with(prefix)) found.push_back(entry.path());
  }
  std::sort(found.begin(), found.end());
  return found;
}

// 2.9 is before 2.11.
bool is_older(const std::string& a, const std::string& b) {
  const auto number = [](const std::string& version) {
    const size_t dot = version.find('.');
    return std::pair(base::parse_integer(version.substr(0, dot)).value_or(0),
                     dot == std::string::npos ? 0 : base::parse_integer(version.substr(dot + 1)).value_or(0));
  };
  return number(a) < number(b);
}

// "2.15.0" of the lines "#define TORCH_VERSION_MAJOR 2" and so on; "": not such a file.
std::string version_in_header(const fs::path& header) {
  std::istringstream lines(base::read_whole_file(header).value_or(""));
  std::string version;
  for (std::string define, name, value; lines >> define;) {
    if (define != "#define" || !(lines >> name) || !name.starts_with("TORCH_VERSION_")) continue;
    const std::string part = name.substr(std::string_view("TORCH_VERSION_").size());
    if ((part == "MAJOR" || part == "MINOR" || part == "PATCH") && lines >> value)
      version += (version.empty() ? "" : ".") + value;
  }
  return version;
}

// The folder of the torch that python3 imports; "": none.
std::string python_torch(const base::Environment& environment) {
  const std::optional<std::string> python = base::find_program("python3", environment);
  if (!python) return "";
  base::ProcessOptions options;
  options.program = *python;
  options.arguments = {"python3", "-c",
                       "import importlib.util as u; s = u.find_spec('torch'); "
                       "print(s.submodule_search_locations[0] if s else '')"};
  options.environment = environment;
  try {
    const auto result = base::run_program(std::move(options), std::chrono::seconds(20));
    if (!result || !result->state.success()) return "";
    return result->output.substr(0, result->output.find('\n'));
  } catch (const ConfigError&) {
    return "";
  }
}

// "LibTorch 2.15", "one of LibTorch 2.11, 2.15"
std::string supported_versions(const std::vector<std::string>& versions) {
  return fmt::format("{}LibTorch {}", versions.size() > 1 ? "one of " : "", fmt::join(versions, ", "));
}

}  // namespace

std::string TorchFolder::minor() const { return version.substr(0, version.find('.', version.find('.') + 1)); }

std::optional<TorchFolder> read_torch_folder(const fs::path& folder) {
  if (folder.empty() || !is_there(folder / "lib/libtorch_cpu.so")) return std::nullopt;
  std::string version = version_in_header(folder / "include/torch/headeronly/version.h");
  // Up to LibTorch 2.9.
  if (version.empty()) version = version_in_header(folder / "include/torch/csrc/api/include/torch/version.h");
  if (version.empty()) return std::nullopt;
  return TorchFolder{folder, version};
}

// An installation of an earlier version may have left a program beside this one.
bool Installation::is_build_folder() const {
  return is_there(program.parent_path() / kTensorProgram) && torch_versions().empty();
}

fs::path Installation::folder_of_version(const std::string& minor) const {
  return program.parent_path().parent_path() / "lib/lockstep" / ("torch-" + minor);
}

fs::path Installation::prefix() const {
  if (is_build_folder()) {
    throw ConfigError("prefix",
                      fmt::format("'{}' is in a build folder; install it: cmake --install {} --prefix FOLDER",
                                  program.string(), program.parent_path().parent_path().string()));
  }
  return program.parent_path().parent_path();
}

bool Installation::has_cmake_package() const {
  const fs::path root = program.parent_path().parent_path();
  return is_there(root / "lib/cmake/Lockstep/LockstepConfig.cmake") ||
         is_there(root / "lib64/cmake/Lockstep/LockstepConfig.cmake");
}

std::vector<std::string> Installation::torch_versions() const {
  std::vector<std::string> versions;
  for (const fs::path& folder : folders_in(program.parent_path().parent_path() / "lib/lockstep", "torch-")) {
    if (is_there(folder / kTensorProgram)) versions.push_back(folder.filename().string().substr(6));
  }
  std::sort(versions.begin(), versions.end(), is_older);
  return versions;
}

bool Installation::has_program_for(const TorchFolder& torch) const {
  return is_there(folder_of_version(torch.minor()) / kTensorProgram);
}

Installation::Search Installation::search(const base::Environment& environment) const {
  if (const auto named = environment.get(kTorchVariable); named && !named->empty()) {
    const auto torch = read_torch_folder(*named);
    if (!torch) {
      throw ConfigError("cli",
                        fmt::format("{} has no LibTorch (include and lib/libtorch_cpu.so): '{}'; set it to "
                                    "the folder of an installed torch, or unset it",
                                    kTorchVariable, *named));
    }
    if (!has_program_for(*torch)) {
      throw ConfigError(
          "cli", fmt::format("{} has LibTorch {}, and this installation needs {}: '{}'; set it to "
                             "another folder, or unset it",
                             kTorchVariable, torch->version, supported_versions(torch_versions()), *named));
    }
    return {torch, std::nullopt};
  }
  if (const auto built = read_torch_folder(kBuiltTorch); built && has_program_for(*built)) {
    return {built, std::nullopt};
  }
  Search result;
  const auto look_at = [&](const fs::path& folder) {
    const auto torch = read_torch_folder(folder);
    if (torch && has_program_for(*torch)) {
      result.found = torch;
    } else if (torch && !result.skipped) {
      result.skipped = torch;
    }
    return result.found.has_value();
  };
  const fs::path root = program.parent_path().parent_path();
  // Red Hat's Python has lib64.
  for (const char* const library : {"lib", "lib64"}) {
    for (const fs::path& python : folders_in(root / library, "python3")) {
      if (look_at(python / "site-packages/torch") || look_at(python / "dist-packages/torch")) return result;
    }
  }
  if (look_at(root / "torch")) return result;  // pip install --target
  look_at(python_torch(environment));
  return result;
}

std::optional<TorchFolder> Installation::find_torch(const base::Environment& environment) const {
  return is_build_folder() ? read_torch_folder(kBuiltTorch) : search(environment).found;
}

TensorProgram Installation::tensor_program(const base::Environment& environment) const {
  if (is_build_folder()) return {program.parent_path() / kTensorProgram, std::nullopt};
  const std::vector<std::string> versions = torch_versions();
  if (versions.empty()) {
    throw ConfigError(
        "cli", fmt::format("this installation has no {}, which this command needs: there is none below '{}'",
                           kTensorProgram, folder_of_version("*").string()));
  }
  const auto [torch, skipped] = search(environment);
  if (!torch) {
    throw ConfigError(
        "cli",
        fmt::format("this command needs {}, {}: pip install 'torch=={}.*', or set {} to the folder of an "
                    "installed torch",
                    supported_versions(versions),
                    skipped ? fmt::format("but '{}' is {}", skipped->folder.string(), skipped->version)
                            : std::string("but none was found"),
                    versions.back(), kTorchVariable));
  }
  return {folder_of_version(torch->minor()) / kTensorProgram, torch->folder / "lib"};
}

std::vector<std::string> Installation::plugins(const base::Environment& environment,
                                               const std::optional<TorchFolder>& torch) const {
  std::vector<fs::path> folders;
  if (const auto folder = environment.get("LOCKSTEP_PLUGIN_DIR")) folders.emplace_back(*folder);
  if (is_build_folder()) folders.push_back(program.parent_path().parent_path() / "lib");
  if (torch) folders.push_back(folder_of_version(torch->minor()));
  std::vector<std::string> found;
  for (const char* name : {"mpi", "cuda"}) {
    const std::string file = fmt::format("liblockstep_{}.so", name);
    if (std::any_of(folders.begin(), folders.end(),
                    [&](const fs::path& folder) { return is_there(folder / file); }))
      found.emplace_back(name);
  }
  return found;
}

Installation own_installation() { return {base::own_executable()}; }

std::string version_text(const Installation& installation, const base::Environment& environment) {
  std::string torch;
  std::string plugins = "none";
  try {
    const std::optional<TorchFolder> found = installation.find_torch(environment);
    torch = found ? fmt::format("{} in {}", found->version, found->folder.string()) : "not found";
    if (const auto names = installation.plugins(environment, found); !names.empty())
      plugins = fmt::format("{}", fmt::join(names, ", "));
  } catch (const ConfigError& error) {
    torch = error.what();
  }
  return fmt::format("lockstep {}\ncommit    {}\nLibTorch  {}\nplugins   {}\n", kVersion, kCommit, torch,
                     plugins);
}

}  // namespace lockstep::cli
