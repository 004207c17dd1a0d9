#pragma once

// The options of a training, from code, flags, variables and a TOML file.
//
//   lockstep::TrainConfig config{.max_iter = 50, .batch_size = 64};

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
  std::optional<int64_t> minimum = {};
  std::optional<double> maximum = {};
  // Other names, of the flag and of the key in a file.
  std::vector<std::string> aliases = {};
  // false: a bool has no flag --no_NAME.
  bool negatable = true;
  // false: no environment variable sets it.
  bool has_variable = true;
};

// An option that a program has beside those of TrainConfig. It refers to the field, which
// must outlive it and holds the default. An optional field without a value is unset.
struct ProgramOption {
  using Field = std::variant<
      std::reference_wrapper<std::string>, std::reference_wrapper<bool>, std::reference_wrapper<int64_t>,
      std::reference_wrapper<double>, std::reference_wrapper<std::optional<std::string>>,
      std::reference_wrapper<std::optional<int64_t>>, std::reference_wrapper<std::optional<double>>>;

  std::string name;  // "base_lr": --base_lr, --base-lr, LOCKSTEP_BASE_LR, a key of the file
  Field field;
  std::string help;
  ProgramOptionRules rules = {};
};

// Options of a program's own:
//
//   double lr = 0.1;
//   std::string data = "data";
//   const ProgramOptions own = {{"lr", lr, "learning rate", {.minimum = 0}},
//                               {"data", data, "folder of the data"}};
//   return launch(argc, argv, defaults, own, [&](World& world, const TrainConfig& config) { ... });
//
// They come from where those of TrainConfig come from: the flag, else the variable
// LOCKSTEP_<NAME>, else the file. What they are set to is among the run's hyperparameters. An
// option of TrainConfig with the name or an alias of a program's option is replaced by it.
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

// A picture of the model at an iteration, under a name.
using PlotFunction = std::function<std::pair<std::string, Image>(const Model& model, int64_t iteration)>;

// How a program runs and trains. Set it in code with designated initialisers, and
// from the command line with from_args(): every field that is a value has a flag of its
// name (--max_iter, or --max-iter), a variable (LOCKSTEP_MAX_ITER) and a key in the TOML
// file that --config names. max_iter is also --epochs and log_folder --run-dir. The command line wins over
// the variable, the variable over the file, the file over the code.
struct TrainConfig {
  // --- processes ---

  // Ranks over all nodes. Unset: what the launcher started, else 1.
  std::optional<int> nprocs = {};
  // cpu, gpu, or auto: gpu where one is found.
  std::string compute_setup = "auto";
  // gloo, nccl, mpi, shm, fake, or auto: nccl on GPUs; on CPUs shared memory inside
  // a host and Gloo between hosts.
  std::string backend = "auto";
  // Where ranks meet: env://, tcp://host:port or file:///path. Unset: env://.
  std::optional<std::string> init_method = {};
  // How long, in seconds, a collective waits for a peer before the job fails.
  int timeout_s = 600;

  // --- training ---

  // Epochs in all: exactly this many, those before a resume included.
  int64_t max_iter = 10000;
  // Batches of an epoch at most. Unset: all; one where the data have no end.
  std::optional<int64_t> max_batches = {};
  // Samples a batch on each rank. Unset: what the loader says.
  std::optional<int64_t> batch_size = {};
  // Samples an optimizer step over all ranks and accumulated batches, which must divide
  // it. Not together with batch_size.
  std::optional<int64_t> global_batch_size = {};
  // Batches whose gradients are added up for one step of the optimizer.
  int64_t accumulate_steps = 1;
  // float32, float64, bfloat16 or float16: of the parameters and of floating-point
  // inputs.
  std::string dtype = "float32";
  // fp32, or mixed: bf16, fp16. Mixed keeps parameters in float32, computes the forward
  // in the short format where that is safe, and with fp16 scales the loss.
  std::string precision = "fp32";
  // Bound of the norm of all gradients together, and of each element; 0: none.
  double clip_grad_norm = 0;
  double clip_grad_value = 0;
  // Weights for evaluation: an average over the steps with this decay; 0: none.
  double ema_decay = 0;
  // Of the initial weights (launch() seeds every rank alike), of shuffling (added to
  // the loader's own seed), and, plus the rank, of each rank's stream from fit() on.
  uint64_t seed = 0;
  // Only operations that give the same bits every time; one that has none is an error.
  bool deterministic = false;
  // On GPUs: SGD, Adam and AdamW update all parameters in a few kernels, and skip a step
  // that overflows without asking the host. Equal to rounding.
  bool fused_optimizer = true;
  // On GPUs: records the kernels of a step once and starts them with one call. Model and
  // loss must not read values on the host. With several ranks: nccl.
  bool cuda_graph = false;
  // On GPUs: the first steps try the algorithms of each convolution and keep the fastest.
  // Another run may keep others, which round differently. Not with deterministic.
  bool cudnn_benchmark = false;
  // What is sharded over the ranks, and what is offloaded. The members that a run chooses have
  // flags: --zero_stage.
  ZeroOptions zero = {};
  // A DeepSpeed configuration, as a file or in base64, that governs the training: its batch,
  // precision, clipping, stage, and optimizer and scheduler where it has them. A flag that
  // says the same is an error; a value that is set in code gives way with a warning. See
  // docs/deepspeed.md. Empty: none.
  std::string deepspeed_config;
  // As DeepSpeed's programs have it; needs deepspeed_config, which is enough by itself.
  bool deepspeed = false;
  // As DeepSpeed's launcher passes it: must be what the environment says. -1: not given.
  int local_rank = -1;
  // Parameters may go without gradient in a step. See DataParallelOptions.
  bool find_unused_parameters = false;

  // --- validation and stopping ---

  // Validates every so many epochs, and once before training; 0: never.
  int64_t val_every = 0;
  // false: not before training.
  bool val_at_start = true;
  // The third argument of validation_criterion.
  double val_epsilon = 1e-5;
  // (validation loss, best so far, val_epsilon) -> whether this is a new best one. Also asked
  // about a checkpoint and the best one saved before it. Empty: loss < best - val_epsilon.
  std::function<bool(double loss, double best, double epsilon)> validation_criterion = {};
  // After every epoch: whether to stop. Sees metrics of all ranks, so all decide alike.
  std::function<bool(const TrainResult&)> trainstop_criterion = {};

  // --- checkpoints ---

  // Epochs, and optimizer steps, between two checkpoints; 0: none. With one of them set
  // the end of training, Ctrl-C and preemption are saved too.
  int64_t checkpoint_every = 0;
  int64_t checkpoint_every_steps = 0;
  // Instead: only when validation gives a new best one, and at Ctrl-C and preemption. A run that
  // has ended is not trained further when it is started again, unless max_iter was changed.
  bool checkpoint_best_only = false;
  // Newest checkpoints that are kept; the best one, by validation_criterion and val_epsilon,
  // is kept beside them.
  int checkpoint_keep = 3;
  // false: the step waits until a checkpoint is on disk.
  bool checkpoint_async = true;
  // auto: from the newest valid checkpoint in the run folder; never; or the path of a
  // checkpoint or of a run folder.
  std::string resume = "auto";

  // --- output ---

  // Epochs between two printed lines; 0: none.
  int64_t print_every = 0;
  // Rank 0 prints. true: every rank prints its line, with its own loss.
  bool print_all_ranks = false;
  // Epochs between two writes to the trackers; 0: none.
  int64_t write_every = 1;
  // Epochs between two calls of the plotting functions; 0: none.
  int64_t plot_every = 0;
  std::vector<PlotFunction> plotting_functions = {};
  // tensorboard, mlflow, none, or several with commas. CSV and JSON lines are always
  // written.
  std::string tracking_tool = "tensorboard";
  // Told to the trackers at the start, and at the end or an interruption with the metrics of then.
  Hyperparameters hyperparams = {};
  // Hands the weights to the trackers at the end, and with ema_decay their average beside them.
  bool log_model = false;
  // What is printed and written is over all ranks. false: rank 0's own. What decides
  // (plateau, early stopping, best checkpoint) is over all ranks in any case.
  bool all_reduce_metrics = true;
  // Where the sums of metrics are kept: auto, on the device, so that no step waits for
  // it; or cpu.
  std::string log_setup = "auto";
  // Parent of the run folders.
  std::string root_folder = "./runs";
  // A folder of its own for each run under root_folder; a job that is started again by
  // its launcher or by Slurm finds the one it had, as docs/trainer.md says. false: root_folder/PROGRAM.
  bool create_subfolder_per_run = true;
  // What the name of such a folder begins with. Empty: the program's name.
  std::string run_name;
  // Exactly this folder instead. A second fit() of the program has NAME-2.
  std::string log_folder;
  // auto: a bar on a terminal, else a line every ten seconds; bar; none.
  std::string progress = "auto";
  // false: no printed lines and no summary.
  bool verbose = true;

  // Called at the stages of training, after those that the fields above make.
  std::vector<std::shared_ptr<Callback>> callbacks = {};

  // Reads file, variables and flags over these defaults, and into the fields of a program's
  // own options. ConfigError: an unknown flag
  // or a bad value; HelpRequested: --help.
  static TrainConfig from_args(int argc, const char* const* argv, const TrainConfig& defaults,
                               const ProgramOptions& own = {});
  static TrainConfig from_args(int argc, const char* const* argv);

  // ConfigError names the first field with a value that is not allowed.
  void validate() const;

  // All fields that are values, resolved, as a JSON object.
  std::string to_json() const;
};

}  // namespace lockstep
