#include <fmt/format.h>
#include <lockstep/callbacks.h>
#include <lockstep/config.h>
#include <lockstep/deepspeed_config.h>
#include <lockstep/error.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "config/zero_options.h"
#include "train/step_trace.h"
#include "train/train_options.h"

namespace lockstep {
namespace {

void add_process_options(config::OptionTable& table, TrainConfig& config) {
  table
      .add("nprocs", config.nprocs, "number of ranks on all nodes; unset: as the launcher started, or 1",
           {.minimum = 1})
      .add("compute_setup", config.compute_setup, "device", {.choices = {"cpu", "gpu", "auto"}})
      .add("backend", config.backend, "backend of collectives",
           {.choices = {"auto", "gloo", "nccl", "mpi", "shm", "fake"}})
      .add("init_method", config.init_method,
           "where the ranks connect: tcp://host:port, file:///path; unset: env://")
      .add("timeout_s", config.timeout_s, "seconds that a collective waits for a peer", {.minimum = 1});
}

void add_training_options(config::OptionTable& table, TrainConfig& config) {
  table.add("max_iter", config.max_iter, "total number of epochs", {.minimum = 0, .aliases = {"epochs"}})
      .add("max_steps", config.max_steps, "total number of optimizer steps; 0: no limit", {.minimum = 0})
      .add("max_time_s", config.max_time_s, "total seconds of training; 0: no limit",
           {.minimum = 0, .aliases = {"max_time"}})
      .add("max_batches", config.max_batches, "maximum number of batches in an epoch; unset: all",
           {.minimum = 1})
      .add("batch_size", config.batch_size, "samples per batch on each rank; unset: the loader's",
           {.minimum = 1})
      .add("global_batch_size", config.global_batch_size,
           "samples per step over all ranks and accumulated batches; unset: as batch_size gives",
           {.minimum = 1})
      .add("accumulate_steps", config.accumulate_steps, "batches per optimizer step", {.minimum = 1})
      .add("dtype", config.dtype, "dtype of parameters and inputs",
           {.choices = {"float32", "float64", "bfloat16", "float16", "complex64", "complex128"}})
      .add("precision", config.precision, "precision of the forward pass; bf16 and fp16 are mixed precision",
           {.choices = {"fp32", "bf16", "fp16"}})
      .add("clip_grad_norm", config.clip_grad_norm, "limit for the norm of all gradients; 0: none",
           {.minimum = 0})
      .add("clip_grad_value", config.clip_grad_value, "limit for each element of the gradients; 0: none",
           {.minimum = 0})
      .add("ema_decay", config.ema_decay, "decay of the averaged weights for evaluation; 0: no average",
           {.minimum = 0, .maximum = 1})
      .add("seed", config.seed, "seed of weights, shuffling and random streams")
      .add("deterministic", config.deterministic, "only operations that give the same bits every time")
      .add("fused_optimizer", config.fused_optimizer, "on GPUs: update all parameters in a few kernels")
      .add("cuda_graph", config.cuda_graph, "on GPUs: record the step once, then replay it")
      .add("cudnn_benchmark", config.cudnn_benchmark,
           "on GPUs: try the algorithms of each convolution in the first steps")
      .add("zero_stage", config.zero.stage,
           "sharded over the ranks: 1 optimizer state, 2 also gradients, 3 also parameters",
           {.minimum = 0, .maximum = 3})
      .add("zero_persistence_threshold", config.zero.persistence_threshold,
           "zero_stage 3 keeps parameters with fewer elements on every rank", {.minimum = 0})
      .add("zero_overlap_gather", config.zero.overlap_gather,
           "gather the updates of Sharded<> modules while the next forward runs")
      .add("zero_offload_optimizer", config.zero.offload_optimizer.device,
           "where masters and optimizer state are stored; none: on the device; nvme needs zero_stage 3",
           {.choices = {"none", "cpu", "nvme"}})
      .add("zero_offload_param", config.zero.offload_param.device,
           "where zero_stage 3 stores parameters that are not in use; none: on the device",
           {.choices = {"none", "cpu"}})
      .add("zero_nvme_path", config.zero.offload_optimizer.nvme_path,
           "folder for zero_offload_optimizer nvme; empty: none")
      .add("deepspeed_config", config.deepspeed_config,
           "DeepSpeed configuration of the training: a file, or base64; empty: none")
      .add("deepspeed", config.deepspeed, "flag of DeepSpeed's programs; needs deepspeed_config")
      .add("local_rank", config.local_rank, "flag of DeepSpeed's launcher: checked, but not needed",
           {.minimum = -1, .has_variable = false})
      .add("find_unused_parameters", config.find_unused_parameters,
           "parameters may have no gradient in a step")
      .add("static_graph", config.static_graph, "every step uses the same parameters")
      .add("gradient_compression", config.gradient_compression, "dtype in which ranks exchange gradients",
           {.choices = {"none", "fp16", "bf16"}})
      .add("bucket_cap_mb", config.bucket_cap_mb, "MiB of a bucket of gradients; unset: 25",
           {.minimum = 0.001, .maximum = 1 << 20})
      .add("first_bucket_cap_mb", config.first_bucket_cap_mb,
           "MiB of the first bucket; unset: 1, or bucket_cap_mb if that is set",
           {.minimum = 0.001, .maximum = 1 << 20})
      .add("sync_batch_norm", config.sync_batch_norm, "batch norm over the batches of all ranks")
      .add("val_every", config.val_every, "epochs between two validations; 0: none", {.minimum = 0})
      .add("val_every_steps", config.val_every_steps,
           "optimizer steps between two validations inside an epoch; 0: none", {.minimum = 0})
      .add("val_at_start", config.val_at_start, "also validate before the first epoch")
      .add("max_val_batches", config.max_val_batches,
           "maximum number of batches in a validation; unset: max_batches", {.minimum = 1})
      .add("best_metric", config.best_metric, "metric that decides which validation is the best")
      .add("best_mode", config.best_mode, "whether the least or the greatest best_metric is the best",
           {.choices = {"min", "max"}})
      .add("val_epsilon", config.val_epsilon, "minimum improvement of best_metric for a new best",
           {.minimum = 0});
}

void add_checkpoint_options(config::OptionTable& table, TrainConfig& config) {
  table
      .add("checkpoint_every", config.checkpoint_every, "epochs between two checkpoints; 0: none",
           {.minimum = 0})
      .add("checkpoint_every_steps", config.checkpoint_every_steps,
           "optimizer steps between two checkpoints; 0: none", {.minimum = 0})
      .add("checkpoint_every_min", config.checkpoint_every_min, "minutes between two checkpoints; 0: none",
           {.minimum = 0})
      .add("checkpoint_best_only", config.checkpoint_best_only, "save only at a new best validation")
      .add("checkpoint_keep", config.checkpoint_keep, "number of newest checkpoints to keep", {.minimum = 1})
      .add("checkpoint_keep_best", config.checkpoint_keep_best, "number of best checkpoints to keep",
           {.minimum = 1})
      .add("checkpoint_weights_only", config.checkpoint_weights_only,
           "checkpoints without optimizer state and position in the data")
      .add("checkpoint_async", config.checkpoint_async, "write checkpoints in the background")
      .add("resume", config.resume, "auto, never, or the path of a checkpoint or run folder");
}

void add_output_options(config::OptionTable& table, TrainConfig& config) {
  table.add("print_every", config.print_every, "epochs between two printed lines; 0: none", {.minimum = 0})
      .add("print_all_ranks", config.print_all_ranks, "every rank prints its own loss")
      .add("write_every", config.write_every, "epochs between two writes to the trackers; 0: none",
           {.minimum = 0})
      .add(
          "log_every", config.log_every,
          "optimizer steps between two rows of step values in the trackers; 0: none; unset: about 50 rows an "
          "epoch",
          {.minimum = 0})
      .add("plot_every", config.plot_every, "epochs between two plots; 0: none", {.minimum = 0})
      .add("tracking_tool", config.tracking_tool, "trackers in addition to CSV and JSON lines",
           {.choices = {"tensorboard", "mlflow", "none"}, .several = true})
      .add("hyperparams", config.hyperparams, "hyperparameters for the trackers: name=value; empty: none")
      .add("log_model", config.log_model, "give the weights to the trackers at the end")
      .add("all_reduce_metrics", config.all_reduce_metrics, "metrics over all ranks; false: of rank 0")
      .add("log_setup", config.log_setup, "where metrics are summed; auto: on their device",
           {.choices = {"auto", "cpu"}})
      .add("root_folder", config.root_folder, "parent of the run folders")
      .add("create_subfolder_per_run", config.create_subfolder_per_run,
           "a new folder for each run in root_folder")
      .add("run_name", config.run_name, "start of the names of run folders; empty: the program's name")
      .add("log_folder", config.log_folder, "exactly this run folder; empty: none", {.aliases = {"run_dir"}})
      .add("gpu_log_every", config.gpu_log_every, "seconds between two lines of each GPU in gpu.csv; 0: none",
           {.minimum = 0, .maximum = 86400})
      .add("trace_steps", config.trace_steps, "steps FIRST:LAST of which a trace is written; empty: none")
      .add("progress", config.progress, "progress bar", {.choices = {"auto", "bar", "none"}})
      .add("verbose", config.verbose, "print lines and the summary");
}

// The flag of an option of ZeRO, or its name in code if it has no flag.
std::string zero_flag(std::string_view option) {
  if (option == "offload_optimizer.device") return "zero_offload_optimizer";
  if (option == "offload_optimizer.nvme_path") return "zero_nvme_path";
  if (option == "offload_param.device") return "zero_offload_param";
  const bool has_flag = option == "stage" || option == "persistence_threshold";
  return fmt::format("zero{}{}", has_flag ? "_" : ".", option);
}

// Options of a replicated model's gradients.
void check_gradient_options(const TrainConfig& config) {
  const std::pair<const char*, bool> options[] = {
      {"static_graph", config.static_graph},
      {"gradient_compression", config.gradient_compression != "none"},
      {"first_bucket_cap_mb", config.first_bucket_cap_mb.has_value()}};
  for (const auto& [name, is_set] : options) {
    if (is_set && config.zero.stage > 0) {
      throw ConfigError("config", fmt::format("{} is for a replicated model, and zero_stage is {}: leave it "
                                              "out, or set zero_stage to 0",
                                              name, config.zero.stage));
    }
    if (is_set && !config.deepspeed_config.empty()) {
      throw ConfigError("config", fmt::format("{} does not work with deepspeed_config: leave it out", name));
    }
  }
  if (config.bucket_cap_mb && !config.deepspeed_config.empty()) {
    throw ConfigError("config",
                      "bucket_cap_mb and deepspeed_config are both set: give the file reduce_bucket_size");
  }
}

using train::has_action;

// Options of validations and checkpoints that need each other.
void check_validation(const TrainConfig& config) {
  const bool validates = config.val_every > 0 || config.val_every_steps > 0;
  if (config.checkpoint_best_only && !validates) {
    throw ConfigError("config", "checkpoint_best_only needs validation, and val_every is 0: set val_every");
  }
  if (has_action(config, FitAction::kSaveBestCheckpoint) && !validates) {
    throw ConfigError("config", "SaveBestCheckpoint needs validation, and val_every is 0: set val_every");
  }
  if (config.checkpoint_best_only && config.checkpoint_every_min > 0) {
    throw ConfigError(
        "config",
        "checkpoint_best_only saves at validations only, and checkpoint_every_min is set: leave "
        "out one of them");
  }
  if (config.best_metric.empty()) throw ConfigError("config", "best_metric must name a metric: ''");
}

void check_together(const TrainConfig& config) {
  if (config.batch_size && config.global_batch_size) {
    throw ConfigError("config",
                      fmt::format("batch_size ({}) and global_batch_size ({}) are both set: set one",
                                  *config.batch_size, *config.global_batch_size));
  }
  if (config.precision != "fp32" && config.dtype != "float32") {
    throw ConfigError("config", fmt::format("precision {} keeps parameters in float32, and dtype is {}: set "
                                            "dtype to float32, or precision to fp32",
                                            config.precision, config.dtype));
  }
  if (config.dtype.starts_with("complex")) {
    if (config.zero.stage > 0) {
      throw ConfigError("config",
                        fmt::format("zero_stage {} does not shard complex parameters, and dtype is {}: "
                                    "set zero_stage to 0",
                                    config.zero.stage, config.dtype));
    }
    if (config.clip_grad_value > 0) {
      throw ConfigError("config", fmt::format("clip_grad_value is for real gradients, and dtype is {}: use "
                                              "clip_grad_norm",
                                              config.dtype));
    }
  }
  if (config.deterministic && config.cudnn_benchmark) {
    throw ConfigError("config",
                      "deterministic and cudnn_benchmark contradict each other: set one of the two to false");
  }
  if (config.zero.stage == 3 && config.plot_every > 0) {
    throw ConfigError("config",
                      "plotting_functions run the model on rank 0 alone, which has no whole one with "
                      "zero_stage 3: use zero_stage 2, or set plot_every to 0");
  }
  if (config.zero.stage == 3 && has_action(config, FitAction::kWritePlots)) {
    throw ConfigError(
        "config",
        "WritePlots runs the model on rank 0 alone, which has no whole one with zero_stage 3: use "
        "zero_stage 2, or leave the callback out");
  }
  if (has_action(config, FitAction::kWritePlots) && config.plotting_functions.empty()) {
    throw ConfigError("config",
                      "WritePlots draws plotting_functions, and there are none: give some, or leave "
                      "the callback out");
  }
  if (config.zero.stage == 3 && config.ema_decay > 0) {
    throw ConfigError("config",
                      "ema_decay averages whole parameters, which no rank has with zero_stage 3: use "
                      "zero_stage 2, or set ema_decay to 0");
  }
  if (const auto violation = config::find_violation(config.zero, zero_flag)) {
    throw ConfigError("config", violation->sentence);
  }
  if (config.deepspeed && config.deepspeed_config.empty()) {
    throw ConfigError("config", "deepspeed needs a configuration: give deepspeed_config a file");
  }
  if (config.ema_decay >= 1) throw ConfigError("config", "ema_decay must be less than 1: 1");
  check_gradient_options(config);
  check_validation(config);
  if (config.plot_every > 0 && config.plotting_functions.empty()) {
    throw ConfigError("config",
                      fmt::format("plot_every is {}, and there are no plotting_functions: give some, or set "
                                  "plot_every to 0",
                                  config.plot_every));
  }
  if (!config.trace_steps.empty() && !train::parse_trace_steps(config.trace_steps)) {
    throw ConfigError("config",
                      fmt::format("trace_steps must be FIRST:LAST as 10:12, or one step; the first is 1: "
                                  "'{}'",
                                  config.trace_steps));
  }
  if (config.resume.empty()) throw ConfigError("config", "resume must be auto, never or a path: ''");
  if (config.tracking_tool.find("none") != std::string::npos && config.tracking_tool != "none") {
    throw ConfigError("config",
                      fmt::format("tracking_tool is none and others: '{}'; leave out none, or the others",
                                  config.tracking_tool));
  }
}

// Refuses options that the DeepSpeed configuration sets too: one of the two would be ignored.
void refuse_governed(const TrainConfig& config, const Json& before, const Json& after) {
  if (config.deepspeed_config.empty()) return;
  const DeepSpeedConfig file = DeepSpeedConfig::from_argument(config.deepspeed_config);
  for (const train::GovernedOption& option : train::governed_changes(file, before, after)) {
    throw ConfigError("config", fmt::format("{} {} and deepspeed_config say the same thing: leave it to the "
                                            "file, where it is {}",
                                            option.name, after.at(option.name).dump(), option.key));
  }
}

// A table of a program's own options, which refers to their fields.
config::OptionTable table_of(const ProgramOptions& own) {
  config::OptionTable table("");
  for (const ProgramOption& option : own.options) {
    const ProgramOptionRules& rules = option.rules;
    std::visit(
        [&](auto field) {
          table.add(option.name, field.get(), option.help,
                    {.choices = rules.choices,
                     .minimum = rules.minimum,
                     .maximum = rules.maximum,
                     .negatable = rules.negatable,
                     .has_variable = rules.has_variable,
                     .aliases = rules.aliases});
        },
        option.field);
  }
  return table;
}

void add_hyperparameters(Hyperparameters& hyperparams, const config::OptionTable& program) {
  const Json values = program.to_json();
  for (const auto& [name, value] : values.items()) {
    if (!value.is_null()) hyperparams.emplace(name, config::free_value_of(value));
  }
}

// The trainer's options that a program replaces by its own or does not have.
std::set<std::string> replaced_options(const ProgramOptions& own, const config::OptionTable& trainer) {
  const std::vector<std::string> names = trainer.names();
  std::set<std::string> replaced;
  for (const std::string& name : own.without) {
    if (std::find(names.begin(), names.end(), name) == names.end()) {
      throw ConfigError("config", fmt::format("ProgramOptions::without names '{}', which is no option of "
                                              "TrainConfig: leave it out",
                                              name));
    }
    replaced.insert(name);
  }
  for (const ProgramOption& option : own.options) {
    replaced.insert(option.name);
    replaced.insert(option.rules.aliases.begin(), option.rules.aliases.end());
  }
  return replaced;
}

}  // namespace

bool train::has_action(const TrainConfig& config, FitAction action) {
  return std::any_of(config.callbacks.begin(), config.callbacks.end(), [action](const auto& callback) {
    const auto* const fit = dynamic_cast<const FitCallback*>(callback.get());
    return fit != nullptr && fit->action() == action;
  });
}

bool train::uploads_model(const TrainConfig& config) {
  const bool is_given = config.log_model || has_action(config, FitAction::kLogModel);
  return is_given && config.tracking_tool.find("mlflow") != std::string::npos;
}

Json train::program_defaults(const TrainConfig& config) {
  return Json::parse((config.program_defaults ? *config.program_defaults : TrainConfig()).to_json());
}

config::OptionTable train::options_of(TrainConfig& config) {
  config::OptionTable table("");
  add_process_options(table, config);
  add_training_options(table, config);
  add_checkpoint_options(table, config);
  add_output_options(table, config);
  return table;
}

ProgramOptions& ProgramOptions::add(std::string name, ProgramOption::Field field, std::string help,
                                    ProgramOptionRules rules) {
  options.push_back({std::move(name), field, std::move(help), std::move(rules)});
  return *this;
}

TrainConfig TrainConfig::from_args(int argc, const char* const* argv, const TrainConfig& defaults,
                                   const ProgramOptions& own) {
  TrainConfig config = defaults;
  const config::OptionTable trainer = train::options_of(config);
  const config::OptionTable program = table_of(own);
  config::OptionTable table(own.description);
  table.add_config_file().add_all(program).add_all(trainer, replaced_options(own, trainer));
  const Json before = table.to_json();
  auto usual = std::make_shared<TrainConfig>(config);
  usual->program_defaults = nullptr;
  add_hyperparameters(usual->hyperparams, program);
  table.parse(argc, argv);
  refuse_governed(config, before, table.to_json());
  add_hyperparameters(config.hyperparams, program);
  config.program_defaults = std::move(usual);
  check_together(config);
  return config;
}

TrainConfig TrainConfig::from_args(int argc, const char* const* argv) {
  return from_args(argc, argv, TrainConfig{});
}

void TrainConfig::validate() const {
  TrainConfig copy = *this;
  train::options_of(copy).validate();
  check_together(copy);
}

std::string TrainConfig::to_json() const {
  TrainConfig copy = *this;
  return train::options_of(copy).to_json().dump(2);
}

}  // namespace lockstep

namespace lockstep::train {

std::vector<GovernedOption> governed_changes(const DeepSpeedConfig& file, const Json& before,
                                             const Json& after) {
  std::vector<GovernedOption> changes;
  const auto look_at = [&](bool governs, const char* name, const char* key) {
    const Json unset;
    if (governs && before.value(name, unset) != after.value(name, unset)) changes.push_back({name, key});
  };
  const bool has_batch = file.train_batch_size || file.train_micro_batch_size_per_gpu;
  look_at(has_batch, "batch_size", "train_micro_batch_size_per_gpu");
  look_at(true, "accumulate_steps", "gradient_accumulation_steps");
  look_at(true, "dtype", "bf16 or fp16");
  look_at(true, "precision", "torch_autocast");
  look_at(true, "clip_grad_norm", "gradient_clipping");
  look_at(true, "zero_stage", "zero_optimization.stage");
  look_at(true, "zero_persistence_threshold", "zero_optimization.stage3_param_persistence_threshold");
  look_at(true, "zero_overlap_gather", "zero_optimization.overlap_comm");
  look_at(true, "zero_offload_optimizer", "zero_optimization.offload_optimizer.device");
  look_at(true, "zero_offload_param", "zero_optimization.offload_param.device");
  look_at(true, "zero_nvme_path", "zero_optimization.offload_optimizer.nvme_path");
  look_at(true, "find_unused_parameters", "zero_optimization.ignore_unused_parameters");
  // Options of programs.
  look_at(file.optimizer.exists(), "lr", "optimizer.params.lr");
  look_at(file.optimizer.exists(), "base_lr", "optimizer.params.lr");
  look_at(file.optimizer.exists(), "momentum", "optimizer.params.momentum");
  look_at(file.optimizer.exists(), "weight_decay", "optimizer.params.weight_decay");
  look_at(file.scheduler.exists(), "gamma", "scheduler.params");
  return changes;
}

}  // namespace lockstep::train
