#pragma once

// The options of a training: processes, batches, precision, sharding, validation, checkpoints, output.
// A program sets defaults in code; flags, LOCKSTEP_ variables and a TOML file override them.
//
// Example:
//
//   lockstep::TrainConfig defaults{.max_iter = 50, .batch_size = 64, .precision = "bf16"};
//   defaults.zero.stage = 2;
//   defaults.validate();
//
// More: docs/trainer.md

#include <lockstep/track.h>
#include <lockstep/zero.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace lockstep {

// The valid values of a program's option and its other names.
struct ProgramOptionRules {
  // Text options: the valid values; empty: any.
  std::vector<std::string> choices = {};
  // Numeric options.
  std::optional<double> minimum = {};
  std::optional<double> maximum = {};
  // Other names, of the flag and of the key in a file.
  std::vector<std::string> aliases = {};
  // false: a bool has no flag --no_NAME.
  bool negatable = true;
  // false: no environment variable sets it.
  bool has_variable = true;
};

// An option that a program has in addition to those of TrainConfig. It refers to the field, which holds
// the default and must outlive the option. An optional field without a value is unset.
struct ProgramOption {
  using Field = std::variant<
      std::reference_wrapper<std::string>, std::reference_wrapper<bool>, std::reference_wrapper<int64_t>,
      std::reference_wrapper<double>, std::reference_wrapper<std::optional<std::string>>,
      std::reference_wrapper<std::optional<int64_t>>, std::reference_wrapper<std::optional<double>>>;

  std::string name;  // "base_lr": --base_lr, --base-lr, LOCKSTEP_BASE_LR, key of the TOML file
  Field field;
  std::string help;
  ProgramOptionRules rules = {};
};

// The options of a program:
//
//   double lr = 0.1;
//   std::string data = "data";
//   const ProgramOptions own = {{"lr", lr, "learning rate", {.minimum = 0}},
//                               {"data", data, "folder of the data"}};
//   return launch(argc, argv, defaults, own, [&](World& world, const TrainConfig& config) { ... });
//
// Their values come from the same places as those of TrainConfig: the flag, or else the variable
// LOCKSTEP_<NAME>, or else the TOML file. They are recorded among the run's hyperparameters. An option
// of TrainConfig is replaced if one of its names is the name or an alias of a program's option.
struct ProgramOptions {
  ProgramOptions() = default;
  ProgramOptions(std::initializer_list<ProgramOption> list) : options(list) {}

  // The same as a further element of `options`.
  ProgramOptions& add(std::string name, ProgramOption::Field field, std::string help,
                      ProgramOptionRules rules = {});

  std::vector<ProgramOption> options;
  // The first line of --help.
  std::string description = "A training program on Lockstep.";
  // Options of TrainConfig that this program does not have: no flag, variable or key sets them.
  std::set<std::string> without;
};

class Callback;
class Model;
struct TrainResult;

// Draws the model at an iteration: the name of the plot and the image. Called on rank 0.
using PlotFunction = std::function<std::pair<std::string, Image>(const Model& model, int64_t iteration)>;

// How a program runs and trains. Set it in code with designated initialisers, or read it with
// from_args(). Every field that is a value has a flag of its name (--max_iter or --max-iter), a
// variable (LOCKSTEP_MAX_ITER) and a key in the TOML file that --config names. max_iter is also
// --epochs, log_folder is also --run-dir. The command line wins over the variable, the variable over
// the file, the file over the code. local_rank has no variable: launchers set LOCAL_RANK.
struct TrainConfig {
  // --- processes ---

  // Ranks on all nodes together. Unset: as many as the launcher started, or 1.
  std::optional<int> nprocs = {};
  // cpu, gpu or auto. auto: gpu if there is one.
  std::string compute_setup = "auto";
  // gloo, nccl, mpi, shm, fake or auto. auto: nccl on GPUs; on CPUs shared memory inside a host and
  // Gloo between hosts.
  std::string backend = "auto";
  // Where the ranks meet: env://, tcp://host:port or file:///path. Unset: env://.
  std::optional<std::string> init_method = {};
  // How many seconds a collective waits for a peer before the job fails.
  int timeout_s = 600;

  // --- training ---

  // Epochs in total, including those before a resume.
  int64_t max_iter = 10000;
  // Optimizer steps in total, including those before a resume. Training ends after this step, also in
  // the middle of an epoch. 0: no limit.
  int64_t max_steps = 0;
  // Seconds of training in total, with validation and including those before a resume. Rank 0's clock
  // decides; training ends after the running step. 0: no limit.
  double max_time_s = 0;
  // Most batches of an epoch. Unset: all batches; one batch if the data are endless. See
  // max_val_batches.
  std::optional<int64_t> max_batches = {};
  // Samples of a batch on each rank. Unset: the loader's.
  std::optional<int64_t> batch_size = {};
  // Samples of one optimizer step over all ranks and accumulated batches; their product must divide it.
  // Excludes batch_size.
  std::optional<int64_t> global_batch_size = {};
  // Batches whose gradients are added for one optimizer step.
  int64_t accumulate_steps = 1;
  // float32, float64, bfloat16 or float16: the type of parameters and of floating-point inputs. Complex
  // ones stay complex. complex64, complex128: the type of parameters and of complex inputs; real inputs
  // become float32 or float64. The loss must be real.
  std::string dtype = "float32";
  // fp32, bf16 or fp16. bf16 and fp16 are mixed precision: parameters stay in float32, the forward
  // computes in 16 bits where that is safe, and fp16 scales the loss.
  std::string precision = "fp32";
  // Upper bound of the norm of all gradients together, and of the magnitude of each element; 0: none.
  double clip_grad_norm = 0;
  double clip_grad_value = 0;
  // Decay of an exponential moving average of the weights, which evaluation then uses; 0: no average.
  double ema_decay = 0;
  // Seeds the initial weights (launch() gives every rank the same seed) and shuffling (added to the
  // loader's seed). From fit() on, seed plus rank seeds each rank's random numbers.
  uint64_t seed = 0;
  // Use only operations whose results are the same bits in every run. An operation without such a
  // variant is an error.
  bool deterministic = false;
  // On GPUs: SGD, Adam and AdamW update all parameters in a few kernels, and skip a step that overflows
  // without waiting for the host. The result is equal up to rounding.
  bool fused_optimizer = true;
  // On GPUs: records the kernels of a step once and replays them with one call. Model and loss must not
  // read values on the host. With several ranks the backend must be nccl.
  bool cuda_graph = false;
  // On GPUs: the first steps measure the algorithms of each convolution and keep the fastest. Another
  // run may keep others, which round differently. Excludes deterministic.
  bool cudnn_benchmark = false;
  // What is sharded over the ranks and what is offloaded. Some members have flags, for example
  // --zero_stage.
  ZeroOptions zero = {};
  // A DeepSpeed configuration, as a file name or in base64. It overrides batch sizes, precision,
  // clipping and ZeRO stage, and optimizer and scheduler if it has them. A flag for the same option is
  // an error; a value set in code is replaced, with a warning. Empty: none. See docs/deepspeed.md.
  std::string deepspeed_config;
  // Accepted because DeepSpeed's programs have this flag. It needs deepspeed_config, which is enough by
  // itself.
  bool deepspeed = false;
  // Accepted because DeepSpeed's launcher passes this flag: must be equal to the local rank of the
  // environment. -1: not given.
  int local_rank = -1;
  // Parameters may have no gradient in a step. See DataParallelOptions.
  bool find_unused_parameters = false;
  // Every step uses the same parameters: unused ones cost nothing after the first step. Not with ZeRO.
  bool static_graph = false;
  // fp16 or bf16: gradients are sent between ranks in 16 bits. none: in their own dtype. Not with ZeRO.
  std::string gradient_compression = "none";
  // Size of the buckets in which gradients are reduced, and of the first one, in MiB. Unset: 25, and 1
  // for the first one. The first one: not with ZeRO.
  std::optional<double> bucket_cap_mb = {};
  std::optional<double> first_bucket_cap_mb = {};
  // Replaces every BatchNorm in the model's Sequentials by one over the batches of all ranks. See
  // convert_sync_batch_norm().
  bool sync_batch_norm = false;

  // --- validation and stopping ---

  // Epochs between two validations; the first is before training. 0: none.
  int64_t val_every = 0;
  // Optimizer steps between two validations inside an epoch, in addition to those of val_every. 0: none.
  int64_t val_every_steps = 0;
  // false: no validation before training.
  bool val_at_start = true;
  // Most batches that each rank validates on. Unset: all; in fit() also as many as max_batches, so that
  // a trial is short, unless the training data are endless.
  std::optional<int64_t> max_val_batches = {};
  // The metric that decides which validation is the best: val_loss, val_NAME of the loss function, or
  // val_SET_NAME of Trainer::add_validation_set(). And whether the least or the greatest is the best:
  // min or max.
  std::string best_metric = "val_loss";
  std::string best_mode = "min";
  // The third argument of validation_criterion.
  double val_epsilon = 1e-5;
  // (best_metric of this validation, best so far, val_epsilon) -> whether this is a new best. Also
  // compares a checkpoint with the best one saved before it. Empty: value < best - val_epsilon, with
  // best_mode max value > best + val_epsilon.
  std::function<bool(double value, double best, double epsilon)> validation_criterion = {};
  // Called after every epoch; true stops training. The metrics are those of all ranks, so all ranks
  // decide alike.
  std::function<bool(const TrainResult&)> trainstop_criterion = {};

  // --- checkpoints ---

  // Epochs between two checkpoints, optimizer steps, and minutes by rank 0's clock; 0: none. If one of
  // them is set, the end of training, Ctrl-C and preemption are saved too.
  int64_t checkpoint_every = 0;
  int64_t checkpoint_every_steps = 0;
  double checkpoint_every_min = 0;
  // Save only when validation gives a new best, and at Ctrl-C and preemption. A finished run does not
  // train further when it is started again, unless max_iter was changed.
  bool checkpoint_best_only = false;
  // Number of newest checkpoints that are kept. The best one, by validation_criterion and val_epsilon,
  // is kept in addition.
  int checkpoint_keep = 3;
  // Number of best checkpoints that are kept. With more than one, they are those with the best values of
  // best_metric, and checkpoint_best_only saves each validation that is one of them.
  int checkpoint_keep_best = 1;
  // true: checkpoints have the weights (and their average) only, for evaluation and export; a training
  // that resumes from one starts at epoch 0 with these weights. Those of Ctrl-C and preemption have
  // everything.
  bool checkpoint_weights_only = false;
  // true: checkpoints are written in the background. false: the step waits until a checkpoint is on
  // disk.
  bool checkpoint_async = true;
  // auto: resume from the newest valid checkpoint in the run folder. never: start from the beginning.
  // Otherwise the path of a checkpoint or of a run folder to resume from.
  std::string resume = "auto";

  // --- output ---

  // Epochs between two printed lines; 0: none.
  int64_t print_every = 0;
  // false: rank 0 prints. true: every rank prints its own loss.
  bool print_all_ranks = false;
  // Epochs between two writes to the trackers; 0: none.
  int64_t write_every = 1;
  // Optimizer steps between two rows of a step's own values in the trackers; 0: none. Unset: about 50
  // rows an epoch, but at least 20 steps apart if the training has more than 1000 steps, and none if
  // write_every is 0.
  std::optional<int64_t> log_every = {};
  // Epochs between two calls of the plotting functions; 0: none.
  int64_t plot_every = 0;
  std::vector<PlotFunction> plotting_functions = {};
  // tensorboard, mlflow, none, or several with commas. CSV and JSON lines are always written.
  std::string tracking_tool = "tensorboard";
  // Written to the trackers at the start, and again with the metrics at the end or at an interruption.
  Hyperparameters hyperparams = {};
  // Gives the weights to the trackers at the end, and with ema_decay also their average.
  bool log_model = false;
  // true: printed and written metrics are those of all ranks. false: those of rank 0. Decisions
  // (plateau, early stopping, best checkpoint) always use the metrics of all ranks.
  bool all_reduce_metrics = true;
  // Where metrics are summed. auto: on the device, so that no step waits for it. cpu: in host memory.
  std::string log_setup = "auto";
  // Parent folder of the run folders.
  std::string root_folder = "./runs";
  // true: each run has its own folder in root_folder; a job that its launcher or Slurm starts again
  // finds its folder, see docs/trainer.md. false: the folder is root_folder/PROGRAM.
  bool create_subfolder_per_run = true;
  // First part of the names of run folders. Empty: the program's name.
  std::string run_name;
  // Use exactly this run folder. A second fit() of the program uses NAME-2. Empty: none.
  std::string log_folder;
  // Seconds between two lines of each GPU in gpu.csv in the run folder: utilisation, memory, power and
  // temperature, in the format of nvidia-smi (docs/tracking.md). 0: none.
  double gpu_log_every = 5;
  // "10:12": writes what steps 10 to 12 did, and when, to rank0.pt.trace.json and so on in the run folder,
  // for Perfetto and TensorBoard (docs/tracking.md). Empty: no trace.
  std::string trace_steps;
  // auto, bar or none. auto: a bar on a terminal, otherwise a line every ten seconds.
  std::string progress = "auto";
  // false: print no lines and no summary.
  bool verbose = true;

  // Called at the stages of training, after the callbacks that the fields above create.
  std::vector<std::shared_ptr<Callback>> callbacks = {};

  // Set by from_args(): the program's defaults, with its own options among the hyperparameters. What
  // differs from them is printed at the start and first in a report. Null: the defaults of these fields.
  std::shared_ptr<const TrainConfig> program_defaults = {};

  // Reads TOML file, variables and flags over the defaults, also into the fields of `own`. Does not
  // change argv. ConfigError: an unknown flag or a bad value. HelpRequested: --help.
  static TrainConfig from_args(int argc, const char* const* argv, const TrainConfig& defaults,
                               const ProgramOptions& own = {});
  static TrainConfig from_args(int argc, const char* const* argv);

  // ConfigError names the first field whose value is not allowed.
  void validate() const;

  // All fields that are values, as a JSON object.
  std::string to_json() const;
};

}  // namespace lockstep
