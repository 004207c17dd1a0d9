#include "cli/init.h"

#include <fmt/format.h>
#include <lockstep/error.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <filesystem>
#include <string>

#include "base/file.h"
#include "base/folder.h"
#include "base/process.h"
#include "cli/init/project_files.h"
#include "config/flag_words.h"

namespace lockstep::cli {
namespace {

namespace fs = std::filesystem;

struct InitOptions {
  std::string folder;
  std::string name;
};

InitOptions parse_init(int argc, const char* const* argv) {
  InitOptions options;
  CLI::App app("Writes a CMake project that trains a model with Lockstep.", "lockstep init");
  app.add_option("folder", options.folder, "a folder that is new or empty")->required();
  app.add_option("--name", options.name, "of project and program; left out: the folder's name");
  try {
    config::parse_words(app, {argv + 1, argv + argc});
  } catch (const CLI::CallForHelp&) {
    throw HelpRequested(app.help());
  } catch (const CLI::ParseError& error) {
    throw ConfigError("init", fmt::format("{}; lockstep init --help lists the flags", error.what()));
  }
  return options;
}

// CMake takes more, but a name is a target, a file and a word in a shell too.
void check_name(const std::string& name) {
  const auto is_good = [](unsigned char c) { return std::isalnum(c) != 0 || c == '_' || c == '-'; };
  const bool begins_well = !name.empty() && std::isalpha(static_cast<unsigned char>(name.front())) != 0;
  // What CMake or the project itself already calls so.
  const bool is_taken = name == "all" || name == "clean" || name == "test" || name == "install" ||
                        name == "help" || name == "lockstep" || name == "build";
  if (begins_well && !is_taken && std::all_of(name.begin(), name.end(), is_good)) return;
  throw ConfigError("init", fmt::format("a project's name begins with a letter, goes on with letters, "
                                        "digits, - and _, and is none of CMake's own; give --name: '{}'",
                                        name));
}

fs::path folder_of(const InitOptions& options) {
  if (options.folder.empty()) throw ConfigError("init", "the folder must not be empty text");
  return fs::absolute(options.folder).lexically_normal();
}

std::string name_of(const InitOptions& options, const fs::path& folder) {
  const std::string name = !options.name.empty()   ? options.name
                           : folder.has_filename() ? folder.filename().string()
                                                   : folder.parent_path().filename().string();
  check_name(name);
  return name;
}

void check_folder(const fs::path& folder) {
  if (!fs::exists(folder)) return;
  if (!fs::is_directory(folder)) {
    throw ConfigError("init", fmt::format("this is a file, not a folder: '{}'", folder.string()));
  }
  std::error_code error;
  const std::vector<base::FolderEntry> entries = base::list_folder(folder, error);
  if (error) {
    throw ConfigError("init",
                      fmt::format("cannot read the folder '{}': {}", folder.string(), error.message()));
  }
  if (entries.empty()) return;
  throw ConfigError("init", fmt::format("the folder is not empty, it holds '{}'; name a new one: '{}'",
                                        entries[0].path().filename().string(), folder.string()));
}

// Where this program is installed, for the project's README.
std::string installed_prefix() {
  const fs::path prefix = fs::path(base::own_executable()).parent_path().parent_path();
  for (const auto& entry : {"lib", "lib64"}) {
    if (fs::exists(prefix / entry / "cmake/Lockstep/LockstepConfig.cmake")) return prefix.string();
  }
  return "/opt/lockstep";
}

void write_project(const fs::path& folder, const std::string& name) {
  check_folder(folder);
  fs::create_directories(folder);
  for (const init::ProjectFile& file : init::project_files(name, installed_prefix())) {
    base::publish_file(folder / file.name, file.content);
  }
}

}  // namespace

int run_init(int argc, const char* const* argv) {
  const InitOptions options = parse_init(argc, argv);
  const fs::path folder = folder_of(options);
  const std::string name = name_of(options, folder);
  try {
    write_project(folder, name);
  } catch (const fs::filesystem_error& error) {
    throw ConfigError("init",
                      fmt::format("cannot write to '{}': {}", folder.string(), error.code().message()));
  }
  fmt::print("Made {}: a program '{}', README.md says how to build and run it\n", folder.string(), name);
  return kExitSuccess;
}

}  // namespace lockstep::cli
