#include <fmt/format.h>
#include <lockstep/error.h>
#include <lockstep/version.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "base/folder.h"
#include "cli/commands.h"
#include "cli/installation.h"
#include "launcher/slurm/sbatch_script.h"

namespace lockstep::cli {
namespace {

// --- the files of a project ---

struct ProjectFile {
  std::string name;
  std::string content;
};

constexpr std::string_view kCMakeLists = R"(cmake_minimum_required(VERSION 3.25)
project(@NAME@ LANGUAGES C CXX)

if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()

find_package(Lockstep @VERSION@ REQUIRED)  # -DCMAKE_PREFIX_PATH=@PREFIX@

add_executable(@NAME@ main.cpp)
target_link_libraries(@NAME@ PRIVATE lockstep::lockstep)
)";

constexpr std::string_view kMain =
    R"(// Tells which of two spirals a point of the plane belongs to, on as many processes as you
// like: build/@NAME@ --nprocs 2

#include <lockstep/lockstep.h>
#include <torch/torch.h>

#include <cmath>

namespace {

// The data: samples by index, each a point and the spiral that it is on. A data set that
// fits into memory can be a lockstep::TensorDataset instead.
class Spirals : public lockstep::Dataset {
 public:
  Spirals(int64_t size, int64_t first) : size_(size), first_(first) {}

  int64_t size() const override { return size_; }

  lockstep::Example get(int64_t index, uint64_t /*seed: for augmentation*/) const override {
    const int64_t spiral = index % 2;
    // Points spread evenly whatever the size of the set.
    const double place = std::fmod(static_cast<double>(first_ + index) * 0.6180339887498949, 1.0);
    const double radius = 0.1 + 0.9 * place;
    const double angle = 2 * M_PI * place + M_PI * static_cast<double>(spiral);
    const std::vector<float> point = {static_cast<float>(radius * std::cos(angle)),
                                      static_cast<float>(radius * std::sin(angle))};
    return {torch::tensor(point), torch::tensor(spiral, torch::kInt64)};
  }

 private:
  int64_t size_;
  int64_t first_;
};

// The model: any module of LibTorch.
struct NetImpl : torch::nn::Module {
  NetImpl() {
    hidden1 = register_module("hidden1", torch::nn::Linear(2, 64));
    hidden2 = register_module("hidden2", torch::nn::Linear(64, 64));
    output = register_module("output", torch::nn::Linear(64, 2));
  }

  torch::Tensor forward(const torch::Tensor& x) {
    return output(torch::relu(hidden2(torch::relu(hidden1(x)))));
  }

  torch::nn::Linear hidden1{nullptr}, hidden2{nullptr}, output{nullptr};
};
TORCH_MODULE(Net);

}  // namespace

int main(int argc, char** argv) {
  lockstep::TrainConfig defaults;  // every field is a flag: --help lists them
  defaults.max_iter = 30;
  defaults.val_every = 5;
  defaults.print_every = 5;
  defaults.checkpoint_every = 10;
  return lockstep::launch(
      argc, argv, defaults, [](lockstep::World& world, const lockstep::TrainConfig& config) {
        const lockstep::Loader train(Spirals(4000, 0), {.batch_size = 32, .shuffle = true});
        const lockstep::Loader validation(Spirals(1000, 4000), {.batch_size = 250});
        Net model;
        torch::optim::Adam optimizer(model->parameters(), 1e-3);
        lockstep::Trainer trainer(world, model, optimizer, config, lockstep::cross_entropy_with_accuracy);
        trainer.fit(train, validation);
      });
}
)";

constexpr std::string_view kReadme = R"(# @NAME@

A training program on Lockstep, made by `lockstep init`.

```
cmake -S . -B build -DCMAKE_PREFIX_PATH=@PREFIX@
cmake --build build
build/@NAME@ --nprocs 2                          two processes on this machine
build/@NAME@ --run-dir runs/one --epochs 60      resumes from the checkpoints in runs/one
sbatch job.sbatch                                on a Slurm cluster
lockstep report runs/*                           a page with curves of the runs
```

`build/@NAME@ --help` lists the flags. `job.sbatch` was printed by `lockstep slurm`: print
another one with `lockstep slurm --nodes 2 --gpus-per-node 4 -- build/@NAME@ > job.sbatch`.

| file | what is in it |
|---|---|
| `main.cpp` | the data set, the model, the training |
| `CMakeLists.txt` | `find_package(Lockstep)` and one program |
| `job.sbatch` | a batch script for Slurm |
)";

constexpr std::string_view kIgnored = "build/\nruns/\n*.out\n";

std::string filled(std::string_view text, const std::string& name, const std::string& prefix) {
  const std::string version(kVersion);
  const std::pair<std::string_view, std::string> values[] = {
      {"@NAME@", name}, {"@PREFIX@", prefix}, {"@VERSION@", version.substr(0, version.rfind('.'))}};
  std::string result(text);
  for (const auto& [mark, value] : values) {
    for (size_t at = result.find(mark); at != std::string::npos; at = result.find(mark, at + value.size())) {
      result.replace(at, mark.size(), value);
    }
  }
  return result;
}

std::string batch_script(const std::string& name) {
  launcher::SbatchRequest request;
  request.command = {"build/" + name};
  request.style = launcher::SlurmStyle::kSrun;
  request.ntasks_per_node = 2;
  request.cpus_per_task = 4;
  request.time = "1:00:00";
  request.signal = "USR1@120";
  request.requeue = true;
  return launcher::sbatch_script(request);
}

// The files of a new project. `prefix` is where Lockstep is installed.
std::vector<ProjectFile> project_files(const std::string& name, const std::string& prefix) {
  return {{"CMakeLists.txt", filled(kCMakeLists, name, prefix)},
          {"main.cpp", filled(kMain, name, prefix)},
          {"job.sbatch", batch_script(name)},
          {"README.md", filled(kReadme, name, prefix)},
          {".gitignore", std::string(kIgnored)}};
}

// --- the command ---

namespace fs = std::filesystem;

struct InitOptions {
  std::string folder;
  std::string name;
};

InitOptions parse_init(int argc, const char* const* argv) {
  InitOptions options;
  config::OptionTable("Writes a CMake project that trains a model with Lockstep.", config::kNoVariables)
      .add_argument("FOLDER", options.folder, "a folder that is new or empty", {.required = true})
      .add("name", options.name, "of project and program; left out: the folder's name")
      .parse(argc, argv);
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
  throw ConfigError("init",
                    fmt::format("a project's name begins with a letter, contains only letters, digits, "
                                "- and _, and is not a target of CMake's own; give --name: '{}'",
                                name));
}

fs::path folder_of(const InitOptions& options) {
  if (options.folder.empty()) throw ConfigError("init", "the folder must not be empty text");
  return fs::absolute(options.folder).lexically_normal();
}

std::string name_of(const InitOptions& options, const fs::path& folder) {
  std::string name = !options.name.empty()   ? options.name
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
  const Installation installation = own_installation();
  return installation.has_cmake_package() ? installation.prefix().string() : "/opt/lockstep";
}

void write_project(const fs::path& folder, const std::string& name) {
  check_folder(folder);
  fs::create_directories(folder);
  for (const ProjectFile& file : project_files(name, installed_prefix())) {
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
