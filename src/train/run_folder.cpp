#include "train/run_folder.h"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <lockstep/deepspeed_config.h>
#include <lockstep/error.h>
#include <lockstep/launch.h>
#include <unistd.h>

#include <lockstep/json.h>
#include <ctime>
#include <fstream>
#include <set>
#include <sstream>
#include <vector>

#include "base/file.h"
#include "base/log.h"
#include "base/number.h"
#include "base/process.h"
#include "checkpoint/error.h"
#include "train/train_options.h"

namespace lockstep::train {
namespace {

namespace fs = std::filesystem;

constexpr char kConfigName[] = "config.json";
constexpr char kRecordName[] = "run.json";

// The parent of this process, which restarts the ranks: its pid and its start time, because pids are
// reused.
std::string launcher_id() {
  const auto launcher = base::process_state(fmt::format("/proc/{}", ::getppid()));
  return fmt::format("launcher{}_{}", ::getppid(), launcher ? std::to_string(launcher->start_time) : "");
}

// An identity that stays the same when the job is started again; empty: nothing starts this job again.
std::string job_id(const base::Environment& environment) {
  if (const auto slurm = environment.get("SLURM_JOB_ID")) {
    const auto task = environment.get("SLURM_ARRAY_TASK_ID");
    const auto array = environment.get("SLURM_ARRAY_JOB_ID");
    const std::string job = array && task ? fmt::format("job{}_{}", *array, *task) : "job" + *slurm;
    // Each step of a Slurm job is a training of its own; the numbers of steps start again when the job
    // is queued again.
    const std::string step = environment.get("SLURM_STEP_ID").value_or("0");
    return step == "0" ? job : job + "." + step;
  }
  const auto run_id = environment.get("TORCHELASTIC_RUN_ID");
  const auto restarts = environment.get("TORCHELASTIC_MAX_RESTARTS");
  if (!run_id || restarts.value_or("0") == "0") return {};
  // "none" is torchrun's id of a run without a name.
  return run_id->empty() || *run_id == "none" ? launcher_id() : "run" + *run_id;
}

Attempt attempt_of(const base::Environment& environment) {
  const auto number = [&environment](const char* name) {
    return base::parse_integer(environment.get(name).value_or("")).value_or(0);
  };
  return {.requeues = number("SLURM_RESTART_COUNT"),
          .launcher = launcher_id(),
          .generation = environment.has("LOCKSTEP_GENERATION") ? number("LOCKSTEP_GENERATION")
                                                               : number("TORCHELASTIC_RESTART_COUNT")};
}

bool restarted_by_launcher(const Attempt& now, const Attempt& then) {
  return now.requeues == then.requeues && now.launcher == then.launcher && now.generation > then.generation;
}

bool restarted(const Attempt& now, const Attempt& then) {
  return now.requeues > then.requeues || restarted_by_launcher(now, then);
}

std::string program_name(const TrainConfig& config) {
  return config.run_name.empty() ? fs::path(base::own_executable()).filename().string() : config.run_name;
}

// "PATH", "PATH-2", "PATH-3".
fs::path numbered(const fs::path& path, int number) {
  return number == 1 ? path : fs::path(fmt::format("{}-{}", path.string(), number));
}

fs::path folder_of(const TrainConfig& config) {
  if (!config.log_folder.empty()) return config.log_folder;
  const std::string program = program_name(config);
  if (!config.create_subfolder_per_run) return fs::path(config.root_folder) / program;
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  ::localtime_r(&now, &local);
  return fs::path(config.root_folder) / fmt::format("{}_{:%Y%m%dT%H%M%S}_{:x}", program, local, ::getpid());
}

std::string text_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// The content of a DeepSpeed file, because its name stays the same when a user edits it.
std::string deepspeed_content(const TrainConfig& config) {
  if (config.deepspeed_config.empty()) return {};
  return DeepSpeedConfig::from_argument(config.deepspeed_config).to_json().dump();
}

Json end_to_json(const RunEnd& end) {
  Json metrics = Json::object();
  for (const auto& [name, value] : end.metrics) metrics[name] = exact_number(value);
  return {{"epochs", end.epochs},     {"steps", end.steps},
          {"max_iter", end.max_iter}, {"max_steps", end.max_steps},
          {"stopped", end.stopped},   {"max_time_s", end.max_time_s},
          {"metrics", metrics},       {"checkpoint_step", end.checkpoint_step}};
}

RunEnd end_from_json(const Json& value) {
  RunEnd end;
  value.at("epochs").get_to(end.epochs);
  value.at("steps").get_to(end.steps);
  value.at("max_iter").get_to(end.max_iter);
  // Earlier releases had no such limits.
  end.max_steps = value.value("max_steps", int64_t{0});
  end.max_time_s = value.value("max_time_s", 0.0);
  value.at("checkpoint_step").get_to(end.checkpoint_step);
  value.at("stopped").get_to(end.stopped);
  for (const auto& [name, number] : value.at("metrics").items()) end.metrics[name] = exact_number_of(number);
  return end;
}

// The content of a folder of an earlier run of this job.
struct FoundRun {
  fs::path path;
  Json config = {};  // null: not written yet
  std::string deepspeed = {};
  int fit = 1;
  int ranks = 0;  // 0: unknown
  Attempt attempt = {};
  std::optional<RunEnd> end = {};
};

FoundRun run_in(const fs::path& path) {
  FoundRun run{.path = path};
  run.config = Json::try_parse(text_of(path / kConfigName)).value_or(nullptr);
  try {
    const Json record = Json::try_parse(text_of(path / kRecordName)).value_or(nullptr);
    if (record.is_null()) return run;
    run.deepspeed = record.value("deepspeed", "");
    run.fit = record.value("fit", 1);
    run.ranks = record.value("ranks", 0);
    run.attempt = {.requeues = record.value("requeues", int64_t{0}),
                   .launcher = record.value("launcher", ""),
                   .generation = record.value("generation", int64_t{0})};
    if (const Json* const end = record.find("end")) run.end = end_from_json(*end);
  } catch (const JsonError& error) {
    base::log_warning("train", "'{}' is not understood, the run in it counts as unfinished: {}",
                      (path / kRecordName).string(), error.what());
  }
  return run;
}

// The facts by which a job finds its run again.
struct WantedRun {
  Json config;
  std::string deepspeed;
  int fit = 1;
  int ranks = 0;
  Attempt attempt;
};

// The first option that has another value in the run of the folder; empty: none.
std::string first_difference(const FoundRun& found, const WantedRun& wanted) {
  // The placement of ranks and their rendezvous may change from start to start. With another number of
  // ranks programs split a global batch into other batches.
  std::set<std::string> free = {"nprocs", "init_method", "local_rank", "timeout_s"};
  if (found.ranks != wanted.ranks) free.insert({"batch_size", "accumulate_steps"});
  // A release without an option behaved as its default does.
  const Json defaults = Json::parse(TrainConfig().to_json());
  for (const auto& [name, value] : wanted.config.items()) {
    const Json* const saved = found.config.find(name);
    const Json& before = saved != nullptr ? *saved : defaults.at(name);
    if (free.contains(name) || before == value) continue;
    return fmt::format("{} {}", name, before.dump());
  }
  return found.deepspeed == wanted.deepspeed ? "" : "another content of deepspeed_config";
}

bool is_same_run(const FoundRun& found, const WantedRun& wanted) {
  if (found.fit != wanted.fit || found.config.is_null()) return false;
  return restarted_by_launcher(wanted.attempt, found.attempt) || first_difference(found, wanted).empty();
}

std::vector<FoundRun> runs_of_job(const fs::path& base) {
  std::vector<FoundRun> runs;
  for (int number = 1; fs::exists(numbered(base, number)); ++number) {
    runs.push_back(run_in(numbered(base, number)));
  }
  return runs;
}

// The run of this job to resume; nullptr: none. Unfinished runs first: a finished one may belong to an
// earlier program of the job.
const FoundRun* run_to_resume(const std::vector<FoundRun>& runs, const WantedRun& wanted) {
  for (const FoundRun& run : runs) {
    if (is_same_run(run, wanted) && !run.end) return &run;
  }
  for (const FoundRun& run : runs) {
    if (is_same_run(run, wanted) && restarted(wanted.attempt, run.attempt)) return &run;
  }
  return nullptr;
}

void say_new_folder(const std::vector<FoundRun>& runs, const WantedRun& wanted, const fs::path& path) {
  for (auto run = runs.rbegin(); run != runs.rend(); ++run) {
    if (run->fit != wanted.fit || run->config.is_null()) continue;
    const std::string difference = first_difference(*run, wanted);
    base::log_info("train", "'{}' of this job holds a run {}: this one is in '{}'", run->path.string(),
                   difference.empty() ? "that has finished" : "with " + difference, path.string());
    return;
  }
}

// Host and device of every rank, for readers of the folder. Collective.
std::string ranks_json(const World& world) {
  const RankMap& map = world.map();
  const Json own = {{"rank", map.rank},
                    {"local_rank", map.local_rank},
                    {"host", map.host},
                    {"device", world.device().str()}};
  Json result = {{"backend", world.communicator().backend()},
                 {"launcher", to_string(map.launcher)},
                 {"ranks", Json::array()}};
  // The name of a host may contain any bytes.
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

// The folder is locked before anything in it changes, because it may be another run's.
void lock_folder(const fs::path& path, std::optional<checkpoint::FolderLock>& lock) {
  fs::create_directories(path);
  lock.emplace(path);
}

// The next free folder of a job. Another program of the job may take one at the same time.
fs::path lock_new_folder(const fs::path& base, int number, std::optional<checkpoint::FolderLock>& lock) {
  for (;; ++number) {
    const fs::path path = numbered(base, number);
    try {
      lock_folder(path, lock);
    } catch (const checkpoint::CheckpointError&) {
      throw;
    } catch (const ConfigError&) {  // it is locked
      continue;
    }
    if (!fs::exists(path / kRecordName)) return path;
    lock.reset();
  }
}

}  // namespace

RunFolder::RunFolder(World& world, const TrainConfig& config, const base::Environment& environment)
    : fit_(world.begin_run()), attempt_(attempt_of(environment)), deepspeed_(deepspeed_content(config)) {
  const std::string job = job_id(environment);
  const auto take = [&] {
    if (!config.log_folder.empty() || !config.create_subfolder_per_run || job.empty()) {
      path_ = numbered(folder_of(config), fit_);
      lock_folder(path_, lock_);
      return;
    }
    const fs::path base = fs::path(config.root_folder) / fmt::format("{}_{}", program_name(config), job);
    const WantedRun wanted{.config = Json::parse(config.to_json()),
                           .deepspeed = deepspeed_,
                           .fit = fit_,
                           .ranks = world.size(),
                           .attempt = attempt_};
    const std::vector<FoundRun> runs = runs_of_job(base);
    if (const FoundRun* const run = run_to_resume(runs, wanted)) {
      path_ = run->path;
      lock_folder(path_, lock_);
      return;
    }
    path_ = lock_new_folder(base, static_cast<int>(runs.size()) + 1, lock_);
    // Written at once: the next program of the job may search before this one trains.
    base::publish_file(path_ / kConfigName, config.to_json() + "\n");
    base::publish_file(path_ / kRecordName, record(world, std::nullopt));
    say_new_folder(runs, wanted, path_);
  };
  // The path, which may contain any bytes except 0, and the end of the run in it.
  const std::string answer = on_main_rank(world.communicator(), [&] {
    try {
      take();
    } catch (const std::exception& error) {
      refuse(config, error);
    }
    const std::optional<RunEnd> end = run_in(path_).end;
    return path_.string() + '\0' + (end ? end_to_json(*end).dump() : "");
  });
  const size_t split = answer.find('\0');
  path_ = answer.substr(0, split);
  if (split + 1 < answer.size()) end_ = end_from_json(Json::parse(answer.substr(split + 1)));
}

std::string RunFolder::record(const World& world, const std::optional<RunEnd>& end) const {
  Json record = {{"fit", fit_},
                 {"ranks", world.size()},
                 {"requeues", attempt_.requeues},
                 {"launcher", attempt_.launcher},
                 {"generation", attempt_.generation}};
  if (!deepspeed_.empty()) record["deepspeed"] = deepspeed_;
  if (end) record["end"] = end_to_json(*end);
  return record.dump(Json::Print{.indent = 1, .order = Json::Order::kAsAdded, .replace_invalid = true}) +
         "\n";
}

void RunFolder::describe(const World& world, const TrainConfig& config,
                         const std::optional<RunEnd>& end) const {
  on_main_rank(world.communicator(), [&, ranks = ranks_json(world)] {
    try {
      base::publish_file(path_ / kConfigName, config.to_json() + "\n");
      base::publish_file(path_ / "config_defaults.json", program_defaults(config).dump(2) + "\n");
      base::publish_file(path_ / "ranks.json", ranks);
      base::publish_file(path_ / kRecordName, record(world, end));
    } catch (const std::exception& error) {
      refuse(config, error);
    }
    return std::string();
  });
}

void RunFolder::record_end(const World& world, const RunEnd& end) const {
  if (!world.is_main()) return;
  try {
    base::publish_file(path_ / kRecordName, record(world, end));
  } catch (const std::exception& error) {
    base::log_warning("train", "the end of the run is not recorded, so a restart may train again: {}",
                      error.what());
  }
}

}  // namespace lockstep::train
