#pragma once

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

// What DeepSpeed's configuration file says, checked, with DeepSpeed 0.19's defaults. A
// field has the name of its key, and its section that of the section, with these
// exceptions: zero_optimization is `zero`, its keys have no prefix stage3_, and
// timers.throughput is `throughput_timer`. docs/deepspeed.md lists every key: whether it
// is honoured or refused, and why. Keys that have one value only here have no field.
//
// Sizes are in elements where the name ends in bucket_size, threshold or parameters.
struct DeepSpeedConfig {
  enum class Dtype { kFp32, kFp16, kBf16 };
  enum class GradientOp { kMean, kSum };
  using OffloadDevice = lockstep::OffloadDevice;
  enum class LogLevel { kDebug, kInfo, kWarning, kError };

  struct Optimizer {
    enum class Type { kNone, kAdam, kAdamW, kAdagrad, kLamb, kLion, kSgd, kRmsprop, kLbfgs };
    enum class LineSearch { kStrongWolfe };

    Type type = Type::kNone;  // none: the program brings its own
    double lr = 1e-3;
    std::array<double, 2> betas = {0.9, 0.999};
    double eps = 1e-8;
    double weight_decay = 0;
    // Adam and AdamW. "Adam" has AdamW's arithmetic, too, unless the file says otherwise;
    // ask decouples_weight_decay().
    bool adam_w_mode = true;
    bool torch_adam = false;  // torch's own Adam: AdamW then has weight decay 0.01 by default
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

  // Stepped once for each step of the optimizer that was not skipped.
  struct Scheduler {
    enum class Type { kNone, kWarmupLr, kWarmupDecayLr, kWarmupCosineLr, kLrRangeTest, kOneCycle };
    enum class Warmup { kLog, kLinear };

    Type type = Type::kNone;
    // The three that warm up.
    int64_t total_num_steps = 0;
    double warmup_min_lr = 0;
    std::optional<double> warmup_max_lr = {};  // none: the optimizer's
    int64_t warmup_num_steps = 1000;           // at least 2 counts
    Warmup warmup_type = Warmup::kLog;
    double warmup_min_ratio = 0;  // of the optimizer's rate
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
    bool auto_cast = false;  // inputs, too
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
    std::optional<Dtype> grad_accum_dtype = {};  // none: as the model
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

  // TensorBoard and CSV.
  struct Monitor {
    bool enabled = false;
    std::string output_path = {};  // empty: where the program was started
    std::string job_name = "DeepSpeedJobName";
  };

  struct FlopsProfiler {
    bool enabled = false;
    int64_t profile_step = 1;
    int64_t module_depth = -1;  // -1: the innermost
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

  std::optional<int64_t> train_batch_size = {};  // of all ranks: resolve_batch() has all three
  std::optional<int64_t> train_micro_batch_size_per_gpu = {};
  std::optional<int64_t> gradient_accumulation_steps = {};
  bool managed_gradient_accumulation = true;  // false: every step() is an update
  double gradient_clipping = 1;               // 0: off
  GradientOp gradient_allreduce_op = GradientOp::kMean;
  // Divide by all ranks before the sum; else by the factor before it, by the rest after it.
  bool prescale_gradients = false;
  double gradient_predivide_factor = 1;
  std::optional<Dtype> communication_data_type = {};  // none: by precision
  std::optional<int64_t> steps_per_print = {};        // none or 0: never
  bool wall_clock_breakdown = false;                  // also on with the FLOPS profiler
  bool memory_breakdown = false;
  bool dump_state = false;
  bool dataloader_drop_last = false;
  bool zero_allow_untested_optimizer = true;  // false: those that DeepSpeed knows only
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

  // A key whose value was "auto", and what it became.
  struct AutoValue {
    std::string key;
    std::string value;  // as JSON
  };
  std::vector<AutoValue> auto_values = {};
  // Keys that the text has, "zero_optimization.stage", and where: "ds.json:3:5"; of the
  // empty key the file's name. For messages: empty in a struct that was made in code.
  std::map<std::string, std::string, std::less<>> places = {};

  // All three: ConfigError "[config] file:line:column: ..." for what is no HJSON,
  // "[deepspeed] ..." for an unknown key, a bad value, or what is refused. `name` is the
  // file's name in messages.
  static DeepSpeedConfig from_file(const std::filesystem::path& path);
  static DeepSpeedConfig from_text(std::string_view text, std::string_view name);
  // A path, or the text in URL-safe base64, as DeepSpeed takes it.
  static DeepSpeedConfig from_argument(const std::string& path_or_base64);

  // ConfigError: values that do not go together, as from_text() checks them; for a struct
  // that was made in code.
  void validate() const;

  // How the section zero_optimization shards a model. Three choices are ours:
  // - a bucket size that is DeepSpeed's default (half a billion elements) leaves that of ZeroOptions;
  //   another one counts, and is the size for reducing, gathering and updating;
  // - communication overlaps backward unless overlap_comm is false;
  // - aio is DeepSpeed's only where files are used.
  ZeroOptions zero_options() const;

  // What the model computes in: fp16 or bf16 where one is enabled.
  Dtype dtype() const { return fp16.enabled ? Dtype::kFp16 : bf16.enabled ? Dtype::kBf16 : Dtype::kFp32; }

  struct BatchTriple {
    int64_t train_batch_size = 0;  // all ranks, one step of the optimizer
    int64_t micro_batch_size = 0;  // one rank, one forward pass
    int64_t accumulation_steps = 1;
  };
  // Any two of the three give the third; train_batch_size or the micro batch alone means
  // one accumulation step. Where the file has neither, the batch that the loader feeds to
  // a rank is the micro batch, if it is known. ConfigError: a contradiction, with the
  // numbers and how to mend it.
  BatchTriple resolve_batch(int64_t world_size, std::optional<int64_t> loader_batch_size = {}) const;

  // Every key that is honoured, with its value, as the file would have it.
  Json to_json() const;
};

}  // namespace lockstep
