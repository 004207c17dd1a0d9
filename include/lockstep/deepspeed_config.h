#pragma once

// Reads DeepSpeed's configuration files. Every key has DeepSpeed 0.19's default and meaning; a key that
// nothing here would act on is refused. The engine (deepspeed.h) and the trainer
// (TrainConfig::deepspeed_config) train by it. Does not need LibTorch.
//
// Example:
//
//   const auto file = lockstep::DeepSpeedConfig::from_text(
//       R"({"train_batch_size": 32, "zero_optimization": {"stage": 2}})", "ds_config.json");
//   const auto batch = file.resolve_batch(world.size());
//   std::printf("%d samples on each rank\n", int(batch.micro_batch_size));
//
// More: docs/deepspeed.md

#include <lockstep/json.h>
#include <lockstep/zero.h>

#include <array>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

// A DeepSpeed configuration, checked, with DeepSpeed 0.19's defaults. Fields and sections have the
// names of their keys, with three exceptions: zero_optimization is `zero`, its keys have no prefix
// stage3_, and timers.throughput is `throughput_timer`. docs/deepspeed.md lists every key, and whether
// and why it is honoured or refused. Keys with only one possible value here have no field.
//
// Sizes are in elements if the name ends in bucket_size, threshold or parameters.
struct DeepSpeedConfig {
  enum class Dtype { kFp32, kFp16, kBf16 };
  enum class GradientOp { kMean, kSum };
  using OffloadDevice = lockstep::OffloadDevice;
  enum class LogLevel { kDebug, kInfo, kWarning, kError };

  struct Optimizer {
    enum class Type { kNone, kAdam, kAdamW, kAdagrad, kLamb, kLion, kSgd, kRmsprop, kLbfgs };
    enum class LineSearch { kStrongWolfe };

    Type type = Type::kNone;  // none: the program passes its own
    double lr = 1e-3;
    std::array<double, 2> betas = {0.9, 0.999};
    double eps = 1e-8;
    double weight_decay = 0;
    // Adam and AdamW. "Adam" also has AdamW's arithmetic unless the file says otherwise; see
    // decouples_weight_decay().
    bool adam_w_mode = true;
    bool torch_adam = false;  // torch's Adam: the default weight decay of AdamW is then 0.01
    bool bias_correction = true;
    bool amsgrad = false;
    double momentum = 0;  // SGD, RMSprop
    double dampening = 0;
    bool nesterov = false;
    double alpha = 0.99;  // RMSprop
    bool centered = false;
    double lr_decay = 0;  // Adagrad
    double initial_accumulator_value = 0;
    double max_coeff = 10;  // Lamb: bounds of the trust ratio
    double min_coeff = 0.01;
    int64_t max_iter = 20;  // LBFGS
    std::optional<int64_t> max_eval = {};
    double tolerance_grad = 1e-7;
    double tolerance_change = 1e-9;
    int64_t history_size = 100;
    std::optional<LineSearch> line_search_fn = {};

    bool exists() const { return type != Type::kNone; }
    // Decoupled weight decay: type AdamW, or Adam in AdamW mode.
    bool decouples_weight_decay() const {
      return type == Type::kAdamW || (type == Type::kAdam && adam_w_mode);
    }
  };

  // Advances with each optimizer step that was not skipped.
  struct Scheduler {
    enum class Type { kNone, kWarmupLr, kWarmupDecayLr, kWarmupCosineLr, kLrRangeTest, kOneCycle };
    enum class Warmup { kLog, kLinear };

    Type type = Type::kNone;
    // WarmupLR, WarmupDecayLR and WarmupCosineLR.
    int64_t total_num_steps = 0;
    double warmup_min_lr = 0;
    std::optional<double> warmup_max_lr = {};  // none: the optimizer's rate
    int64_t warmup_num_steps = 1000;           // 1 counts as 2
    Warmup warmup_type = Warmup::kLog;
    double warmup_min_ratio = 0;  // ratio to the optimizer's rate
    double cos_min_ratio = 1e-4;
    // LRRangeTest.
    double lr_range_test_min_lr = 1e-3;
    int64_t lr_range_test_step_size = 2000;
    double lr_range_test_step_rate = 1;
    bool lr_range_test_staircase = false;
    // OneCycle.
    double cycle_min_lr = 0;
    double cycle_max_lr = 0;
    double decay_lr_rate = 0;
    int64_t cycle_first_step_size = 2000;
    std::optional<int64_t> cycle_second_step_size = {};  // none: the first
    int64_t cycle_first_stair_count = 0;
    std::optional<int64_t> cycle_second_stair_count = {};  // none: the first
    int64_t decay_step_size = 0;
    bool cycle_momentum = true;
    double cycle_min_mom = 0.8;
    double cycle_max_mom = 0.9;
    double decay_mom_rate = 0;
    int64_t last_batch_iteration = -1;

    bool exists() const { return type != Type::kNone; }
  };

  struct Fp16 {
    bool enabled = false;
    bool auto_cast = false;  // convert inputs too
    double loss_scale = 0;   // 0: dynamic
    int64_t initial_scale_power = 16;
    int64_t loss_scale_window = 1000;
    int64_t hysteresis = 2;
    bool consecutive_hysteresis = false;
    int64_t min_loss_scale = 1;

    bool has_dynamic_scale() const { return loss_scale == 0; }
  };

  struct Bf16 {
    bool enabled = false;
    bool check_grad_overflow = true;
  };

  struct TorchAutocast {
    bool enabled = false;
    std::optional<Dtype> dtype = {};  // none: fp16 on a GPU, bf16 on a CPU
  };

  struct DataTypes {
    std::optional<Dtype> grad_accum_dtype = {};  // none: the model's
  };

  struct OffloadOptimizer {
    OffloadDevice device = OffloadDevice::kNone;
    std::optional<std::string> nvme_path = {};
    bool pin_memory = true;
    int64_t buffer_count = 4;
    bool pipeline_read = false;
    bool pipeline_write = false;
    double ratio = 1;
  };

  using OffloadParam = lockstep::OffloadParam;

  struct Zero {
    int64_t stage = 0;
    int64_t reduce_bucket_size = 500'000'000;
    int64_t allgather_bucket_size = 500'000'000;
    std::optional<bool> overlap_comm = {};  // none: overlaps()
    bool ignore_unused_parameters = true;
    int64_t sub_group_size = 1'000'000'000;
    int64_t prefetch_bucket_size = 50'000'000;
    int64_t param_persistence_threshold = 100'000;
    int64_t model_persistence_threshold = std::numeric_limits<int64_t>::max();
    int64_t max_live_parameters = 1'000'000'000;
    int64_t max_reuse_distance = 1'000'000'000;
    bool gather_16bit_weights_on_model_save = false;
    OffloadOptimizer offload_optimizer = {};
    OffloadParam offload_param = {};

    bool overlaps() const { return overlap_comm.value_or(stage == 3); }
  };

  struct Aio {
    int64_t block_size = 1 << 20;  // bytes
    int64_t queue_depth = 8;
    int64_t intra_op_parallelism = 1;  // also thread_count
  };

  struct ActivationCheckpointing {
    bool cpu_checkpointing = false;
  };

  // The sections tensorboard and csv_monitor.
  struct Monitor {
    bool enabled = false;
    std::string output_path = {};  // empty: the working directory
    std::string job_name = "DeepSpeedJobName";
  };

  struct FlopsProfiler {
    bool enabled = false;
    int64_t profile_step = 1;
    int64_t module_depth = -1;  // -1: the innermost modules
    int64_t top_modules = 1;
    bool detailed = true;
    std::optional<std::string> output_file = {};  // none: printed
    double recompute_fwd_factor = 0;
  };

  struct CommsLogger {
    bool enabled = false;
    bool verbose = false;
    bool prof_all = true;
    bool debug = false;
    std::vector<std::string> prof_ops = {};
  };

  struct ThroughputTimer {
    bool enabled = true;
    bool synchronized = true;
  };

  struct Checkpoint {
    enum class TagValidation { kIgnore, kWarn, kFail };
    TagValidation tag_validation = TagValidation::kWarn;
  };

  std::optional<int64_t> train_batch_size = {};  // all ranks; resolve_batch() computes all three
  std::optional<int64_t> train_micro_batch_size_per_gpu = {};
  std::optional<int64_t> gradient_accumulation_steps = {};
  bool managed_gradient_accumulation = true;  // false: every step() is an update
  double gradient_clipping = 1;               // 0: off
  GradientOp gradient_allreduce_op = GradientOp::kMean;
  // true: divide by the number of ranks before the sum. false: divide by the factor before the sum, and
  // by the rest after it.
  bool prescale_gradients = false;
  double gradient_predivide_factor = 1;
  std::optional<Dtype> communication_data_type = {};  // none: depends on the precision
  std::optional<int64_t> steps_per_print = {};        // none or 0: never
  bool wall_clock_breakdown = false;                  // also set by the FLOPS profiler
  bool memory_breakdown = false;
  bool dump_state = false;
  bool dataloader_drop_last = false;
  bool zero_allow_untested_optimizer = true;  // false: only optimizers that DeepSpeed knows
  bool zero_force_ds_cpu_optimizer = true;
  std::optional<LogLevel> log_level = {};

  Optimizer optimizer = {};
  Scheduler scheduler = {};
  Fp16 fp16 = {};
  Bf16 bf16 = {};
  TorchAutocast torch_autocast = {};
  DataTypes data_types = {};
  Zero zero = {};
  Aio aio = {};
  ActivationCheckpointing activation_checkpointing = {};
  Monitor tensorboard = {};
  Monitor csv_monitor = {};
  FlopsProfiler flops_profiler = {};
  CommsLogger comms_logger = {};
  ThroughputTimer throughput_timer = {};
  Checkpoint checkpoint = {};

  // A key whose value was "auto", and the value that replaced it.
  struct AutoValue {
    std::string key;
    std::string value;  // as JSON
  };
  std::vector<AutoValue> auto_values = {};
  // Where the text has a key, for messages: "zero_optimization.stage" -> "ds.json:3:5". The empty key
  // has the file's name. Empty in a struct that was made in code.
  std::map<std::string, std::string, std::less<>> places = {};

  // All three: ConfigError "[config] file:line:column: ..." if the text is not HJSON, "[deepspeed] ..."
  // for an unknown key, a bad value, or a key that is refused. `name` is the file's name in messages.
  static DeepSpeedConfig from_file(const std::filesystem::path& path);
  static DeepSpeedConfig from_text(std::string_view text, std::string_view name);
  // A path, or the text in URL-safe base64, as DeepSpeed accepts it.
  static DeepSpeedConfig from_argument(const std::string& path_or_base64);

  // For a struct that was made in code; from_text() does the same. ConfigError: values that contradict
  // each other.
  void validate() const;

  // The section zero_optimization as ZeroOptions. Three choices differ from DeepSpeed:
  // - a bucket size with DeepSpeed's default (half a billion elements) is replaced by the default of
  //   ZeroOptions; another one is used for reducing, gathering and updating;
  // - communication overlaps backward unless overlap_comm is false;
  // - aio is DeepSpeed's only if files are used.
  ZeroOptions zero_options() const;

  // The dtype in which the model computes: fp16 or bf16 if enabled.
  Dtype dtype() const { return fp16.enabled ? Dtype::kFp16 : bf16.enabled ? Dtype::kBf16 : Dtype::kFp32; }

  struct BatchTriple {
    int64_t train_batch_size = 0;  // all ranks, one step of the optimizer
    int64_t micro_batch_size = 0;  // one rank, one forward pass
    int64_t accumulation_steps = 1;
  };
  // Computes all three numbers: two of them give the third; train_batch_size or the micro batch alone
  // means one accumulation step. If the file has neither, `loader_batch_size` is the micro batch, if
  // given. ConfigError: a contradiction, with the numbers and how to fix it.
  BatchTriple resolve_batch(int64_t world_size, std::optional<int64_t> loader_batch_size = {}) const;

  // Every honoured key with its value, in the form of the file.
  Json to_json() const;
};

}  // namespace lockstep
