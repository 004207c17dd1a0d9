#include "train/run_folder.h"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <lockstep/error.h>
#include <lockstep/world.h>
#include <unistd.h>

#include <lockstep/json.h>
#include <ctime>
#include <fstream>
#include <sstream>

#include "base/atomic_file.h"
#include "base/environment.h"
#include "base/process.h"
#include "train/main_rank.h"

namespace lockstep::train {
namespace {

namespace fs = std::filesystem;

// This process's parent, which starts the ranks again: its pid, and when it began, since
// pids come back.
std::string launcher_id() {
  std::ifstream file(fmt::format("/proc/{}/stat", ::getppid()));
  std::string stat;
  std::getline(file, stat);
  // The name, in parentheses, may hold anything; the start time is the 20th field after it.
  std::istringstream fields(stat.substr(stat.rfind(')') + 1));
  std::string start;
  for (int i = 0; i < 20; ++i) fields >> start;
  return fmt::format("launcher{}_{}", ::getppid(), start);
}

// What stays the same when a job is started again; empty: nothing starts this one again.
std::string job_id(const base::Environment& environment) {
  if (const auto slurm = environment.get("SLURM_JOB_ID")) {
    const auto task = environment.get("SLURM_ARRAY_TASK_ID");
    const auto array = environment.get("SLURM_ARRAY_JOB_ID");
    const std::string job = array && task ? fmt::format("job{}_{}", *array, *task) : "job" + *slurm;
    // Several steps of a job are several trainings; their numbers begin anew when the job
    // is queued again.
    const std::string step = environment.get("SLURM_STEP_ID").value_or("0");
    return step == "0" ? job : job + "." + step;
  }
  const auto run_id = environment.get("TORCHELASTIC_RUN_ID");
  const auto restarts = environment.get("TORCHELASTIC_MAX_RESTARTS");
  if (!run_id || restarts.value_or("0") == "0") return {};
  // "none" is what torchrun calls a run without a name.
  return run_id->empty() || *run_id == "none" ? launcher_id() : "run" + *run_id;
}

std::string own_name(const TrainConfig& config) {
  const std::string program =
      config.run_name.empty() ? fs::path(base::own_executable()).filename().string() : config.run_name;
  if (!config.create_subfolder_per_run) return program;
  const std::string id = job_id(base::Environment::of_process());
  if (!id.empty()) return fmt::format("{}_{}", program, id);
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  ::localtime_r(&now, &local);
  return fmt::format("{}_{:%Y%m%dT%H%M%S}_{:x}", program, local, ::getpid());
}

fs::path folder_of(const TrainConfig& config, int run) {
  const fs::path path = config.log_folder.empty() ? fs::path(config.root_folder) / own_name(config)
                                                  : fs::path(config.log_folder);
  return run == 1 ? path : fs::path(fmt::format("{}-{}", path.string(), run));
}

// Where every rank is, for who reads the folder later. Every rank calls it.
std::string ranks_json(const World& world) {
  const RankMap& map = world.map();
  const Json own = {{"rank", map.rank},
                    {"local_rank", map.local_rank},
                    {"host", map.host},
                    {"device", world.device().str()}};
  Json result = {{"backend", world.communicator().backend()},
                 {"launcher", to_string(map.launcher)},
                 {"ranks", Json::array()}};
  // A host's name may be any bytes.
  const std::string text = own.dump(Json::Print{.order = Json::Order::kAsAdded, .replace_invalid = true});
  for (const std::string& place : world.communicator().all_gather_bytes(text)) {
    result["ranks"].push_back(Json::parse(place));
  }
  return result.dump({.indent = 1, .order = Json::Order::kAsAdded}) + "\n";
}

[[noreturn]] void refuse(const TrainConfig& config, const std::exception& error) {
  const bool exact = !config.log_folder.empty();
  throw ConfigError("train", fmt::format("cannot make a run folder {} '{}': {}",
                                         exact ? "at log_folder" : "under root_folder",
                                         exact ? config.log_folder : config.root_folder, error.what()));
}

// Locked before anything in it changes: it may be another run's.
fs::path make_folder(const TrainConfig& config, int run, std::optional<checkpoint::FolderLock>& lock) {
  try {
    const fs::path path = folder_of(config, run);
    fs::create_directories(path);
    lock.emplace(path);
    return path;
  } catch (const std::exception& error) {
    refuse(config, error);
  }
}

}  // namespace

RunFolder::RunFolder(World& world, const TrainConfig& config)
    : path_(on_main_rank(world, [this, &config, run = world.begin_run()] {
        return make_folder(config, run, lock_).string();
      })) {}

void RunFolder::describe(const World& world, const TrainConfig& config) const {
  on_main_rank(world, [this, &config, ranks = ranks_json(world)] {
    try {
      base::publish_file(path_ / "config.json", config.to_json() + "\n");
      base::publish_file(path_ / "config_defaults.json", TrainConfig().to_json() + "\n");
      base::publish_file(path_ / "ranks.json", ranks);
    } catch (const std::exception& error) {
      refuse(config, error);
    }
    return std::string();
  });
}

}  // namespace lockstep::train
