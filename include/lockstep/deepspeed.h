#pragma once

// Trains a model by a DeepSpeed configuration, in a training loop with DeepSpeed's calls: initialize,
// forward, backward, step. The configuration decides precision, sharding, optimizer, learning rate,
// accumulation, loss scale and clipping.
//
// Example:
//
//   const auto file = lockstep::DeepSpeedConfig::from_text(
//       R"({"train_micro_batch_size_per_gpu": 64,
//           "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
//           "zero_optimization": {"stage": 2}})",
//       "ds_config.json");
//   auto engine = lockstep::initialize(net, file, world);
//   engine.backward(torch::mse_loss(engine.forward(x), y));
//   engine.step();
//
// More: docs/deepspeed.md

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <lockstep/communicator.h>
#include <lockstep/data.h>
#include <lockstep/deepspeed_config.h>
#include <lockstep/sharded.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace torch::nn {
class Module;
}
namespace torch::optim {
class Optimizer;
}

namespace lockstep {

class Autocast;
class ScheduledLearningRate;
class World;
struct ProgramOptions;

// The flags of DeepSpeed's programs, as values of a program:
//
//   DeepSpeedArguments arguments;
//   ProgramOptions own = {{"lr", lr, "learning rate"}};
//   add_config_arguments(own, arguments);
//   return launch(argc, argv, {}, own, [&](World& world, const TrainConfig&) {
//     auto engine = initialize(net, arguments.config(world), world);
//   });
struct DeepSpeedArguments {
  bool deepspeed = false;
  std::string deepspeed_config;
  // What DeepSpeed's launcher passes; -1: nothing.
  int64_t local_rank = -1;

  // Reads the file. ConfigError: there is none, or local_rank is not the rank of this process.
  DeepSpeedConfig config(const World& world) const;
};

// Adds --deepspeed, --deepspeed_config FILE and --local_rank N, with - or _ in the names.
ProgramOptions& add_config_arguments(ProgramOptions& options, DeepSpeedArguments& arguments);

struct SaveCheckpointOptions {
  // The checkpoint is in a subfolder of this name. Empty: in the folder itself.
  std::string tag = {};
  // Data of the program, as JSON; load_checkpoint() returns it.
  std::string client_state = "null";
  // How long the ranks wait for each other before the save fails.
  std::chrono::milliseconds patience = std::chrono::seconds(10);
};

struct LoadCheckpointOptions {
  std::string tag = {};
  // false: the optimizer's state is not changed.
  bool load_optimizer_states = true;
  bool load_lr_scheduler_states = true;
  // true: load only the weights; counters, loss scale and everything else are not changed.
  bool load_module_only = false;
};

struct LoadedCheckpoint {
  std::filesystem::path path;
  std::string client_state;  // "null": the checkpoint has none
};

// Trains a model by a DeepSpeed configuration: see Engine, which adds forward(). Collective: all ranks
// make the same calls, each of which may block for the others. One thread at a time.
class EngineCore {
 public:
  struct Impl;

  // While it exists, backward() only adds to this rank's gradients, and step() is refused. The next
  // backward() that reduces (at stages 0 and 1 the last one of a step) includes them.
  class NoSync {
   public:
    ~NoSync();
    NoSync(NoSync&& other) noexcept;
    NoSync& operator=(NoSync&&) = delete;

   private:
    friend class EngineCore;
    explicit NoSync(Impl* engine);
    Impl* engine_;
    std::optional<GradientSync::NoSync> sync_;
  };

  // The configuration must be checked already (from_file() or validate()). `optimizer` is the program's
  // own; null: the configuration names one. `device` is where the model trains; unset: where it is.
  // With offload_param the model stays in host memory and is copied to the device bucket by bucket.
  // Blocks until all ranks are here. ConfigError: the configuration asks for something that nothing
  // acts on (with its place in the file); no optimizer, or two; everything that ShardedModel refuses.
  // `local_rank` is only for local_rank(); -1: unknown.
  EngineCore(std::shared_ptr<torch::nn::Module> module, DeepSpeedConfig config, Communicator communicator,
             torch::optim::Optimizer* optimizer, std::optional<c10::Device> device, int local_rank = -1);
  ~EngineCore();
  EngineCore(EngineCore&&) noexcept;
  EngineCore& operator=(EngineCore&&) = delete;

  // `loss` is the mean over one micro batch on this rank, one number. It is divided by the accumulation
  // steps and scaled before its backward.
  void backward(const at::Tensor& loss);
  // Call it once after each backward(). Counts a micro batch. The last micro batch of a step clips,
  // updates the weights, advances learning rate and loss scale, and clears the gradients. All ranks
  // skip a step in which a gradient of any rank is not finite (fp16, bf16).
  //
  // ConfigError: no backward() before it; inside no_sync(); an overflow at the minimum loss scale; or
  // an update whose last backward() was inside no_sync(), so that its gradients are not reduced. The
  // gradients are kept then: call a backward() outside of no_sync(), and then step().
  void step();
  [[nodiscard]] NoSync no_sync() { return NoSync(impl_.get()); }
  // Clears the gradients of an unfinished step. Not needed: step() does it. DeepSpeed's programs call
  // optimizer.zero_grad() before each forward; with optimizer().zero_grad() this is the same call.
  void zero_grad();

  // Whether the next step() updates the weights; always true if managed_gradient_accumulation is false.
  bool is_gradient_accumulation_boundary() const;
  // Whether the last step() changed the weights.
  bool was_step_applied() const;
  int64_t micro_steps() const;     // calls of step()
  int64_t global_steps() const;    // those that ended an optimizer step, including skipped ones
  int64_t skipped_steps() const;   // optimizer steps that were skipped
  int64_t global_samples() const;  // of all ranks
  // The rate of each parameter group in the next step.
  std::vector<double> get_lr() const;
  // The norm of the last step's gradients over all ranks, unscaled and before clipping; nullopt before
  // the first step. Not finite if the step was skipped. Waits for the device.
  std::optional<double> get_global_grad_norm() const;
  double loss_scale() const;  // 1: no scaling
  // All three batch sizes. If the file has none, they are known after the first forward.
  DeepSpeedConfig::BatchTriple batch() const;

  // Saves the state of all ranks in `folder`, which all ranks must see, in the format of
  // docs/checkpoints.md. Any stage, any number of ranks, the trainer and `lockstep ckpt` can read it.
  // Returns its path. Collective; blocks until it is on disk. ConfigError: gradients of an unfinished
  // step would be lost; the ranks' tags differ and tag_validation is Fail; some ranks did not call it
  // (the error names them). CheckpointError on all ranks if one failed.
  std::filesystem::path save_checkpoint(const std::filesystem::path& folder,
                                        const SaveCheckpointOptions& options = {});
  // Loads the newest valid checkpoint of `folder`, which may be the run folder of a trainer. nullopt,
  // with a warning: there is none. Collective. ConfigError: it is a checkpoint of another model or
  // another optimizer.
  std::optional<LoadedCheckpoint> load_checkpoint(const std::filesystem::path& folder,
                                                  const LoadCheckpointOptions& options = {});
  // Rank 0 writes the complete weights in the model's dtype to one file: "*.safetensors", or another
  // name for torch.load. Collective. false, with a warning: stage 3 without
  // stage3_gather_16bit_weights_on_model_save, which confirms that there is memory for all weights.
  bool save_16bit_model(const std::filesystem::path& folder, const std::string& file = "model.safetensors");

  // With comms_logger: rank 0 logs count, time and bandwidth of each collective and size so far; the
  // engine does the same when it is destroyed. `show_straggler`: also the time spent waiting for the
  // last rank; collective then. ConfigError: comms_logger is not enabled.
  void log_comms_summary(bool show_straggler = false) const;

  const DeepSpeedConfig& config() const;
  const Communicator& communicator() const;
  torch::optim::Optimizer& optimizer();
  // The configuration's schedule, which step() advances. nullptr: it has none.
  ScheduledLearningRate* scheduler();
  // Where the model computes: the device for the batches.
  c10::Device device() const;
  // This rank among those of its node. -1: the engine was made with a Communicator, which does not know it.
  int local_rank() const;
  // A loader for training: this rank's share of the data set in micro batches of the configuration, with its
  // dataloader_drop_last. options.batch_size is ignored. ConfigError: the configuration has no batch size.
  Loader loader(std::shared_ptr<const Dataset> dataset, LoaderOptions options = {.shuffle = true}) const;
  template <std::derived_from<Dataset> D>
  Loader loader(D dataset, const LoaderOptions& options = {.shuffle = true}) const {
    return loader(std::shared_ptr<const Dataset>(std::make_shared<const D>(std::move(dataset))), options);
  }
  // Makes all parameters readable while the result exists. Needed at stage 3, and at every stage for
  // modules inside Sharded<> if overlap_comm is true, because their updates may still be in transfer.
  // Collective.
  [[nodiscard]] std::shared_ptr<void> gather_parameters();

 protected:
  // Prepares one forward, and ends it.
  class Forward {
   public:
    ~Forward();
    Forward(const Forward&) = delete;
    Forward& operator=(const Forward&) = delete;

   private:
    friend class EngineCore;
    Forward(EngineCore& engine, std::optional<int64_t> batch_size);
    Impl& impl_;
    std::unique_ptr<Autocast> autocast_;
  };
  // ConfigError: the first batch of the training does not have the configuration's size.
  Forward begin_forward(std::optional<int64_t> batch_size) { return {*this, batch_size}; }
  // The tensor in the form that the model takes: in 16 bit if fp16.auto_cast is set.
  at::Tensor input(const at::Tensor& tensor) const;
  Impl& impl() { return *impl_; }
  const Impl& impl() const { return *impl_; }

 private:
  std::unique_ptr<Impl> impl_;
};

// A model with everything that its DeepSpeed configuration asks for: precision, sharding, optimizer,
// learning rate, accumulation, loss scale, clipping, progress lines, monitors. initialize() makes it.
//
// The model is converted to the configuration's dtype. Model and engine must outlive every backward; an
// optimizer of the program must outlive the engine.
template <typename M>
class Engine : public EngineCore {
 public:
  Engine(std::shared_ptr<M> module, DeepSpeedConfig config, Communicator communicator,
         torch::optim::Optimizer* optimizer = nullptr, std::optional<c10::Device> device = {},
         int local_rank = -1)
      : EngineCore(module, std::move(config), std::move(communicator), optimizer, device, local_rank),
        module_(std::move(module)) {}

  // The module's forward. The first dimension of the first tensor is the batch.
  template <typename... Args>
  auto forward(Args&&... args) {
    const Forward scope = begin_forward(batch_size(args...));
    return module_->forward(converted(std::forward<Args>(args))...);
  }
  template <typename... Args>
  auto operator()(Args&&... args) {
    return forward(std::forward<Args>(args)...);
  }

  const std::shared_ptr<M>& module() const { return module_; }
  M* operator->() const { return module_.get(); }

 private:
  static std::optional<int64_t> batch_size() { return std::nullopt; }
  template <typename First, typename... Rest>
  static std::optional<int64_t> batch_size(const First& first, const Rest&... rest) {
    if constexpr (std::is_same_v<First, at::Tensor>) {
      if (first.dim() > 0) return first.size(0);
    }
    return batch_size(rest...);
  }

  template <typename T>
  decltype(auto) converted(T&& argument) {
    if constexpr (std::is_same_v<std::remove_cvref_t<T>, at::Tensor>) {
      return input(argument);
    } else {
      return std::forward<T>(argument);
    }
  }

  std::shared_ptr<M> module_;
};

// Makes an engine. `model` is a shared pointer to a module, or LibTorch's holder of one
// (torch::nn::Linear). `world` is a World, to whose device the model is moved, or a Communicator; the
// model then stays where it is. `optimizer` is the program's own; null: the configuration names one.
// Collective; blocks until all ranks are here. ConfigError: as EngineCore.
template <typename Model, typename Ranks>
auto initialize(const Model& model, DeepSpeedConfig config, const Ranks& world,
                torch::optim::Optimizer* optimizer = nullptr) {
  if constexpr (requires { model.ptr(); }) {
    return initialize(model.ptr(), std::move(config), world, optimizer);
  } else if constexpr (requires { world.communicator(); }) {
    return Engine<typename Model::element_type>(model, std::move(config), world.communicator(), optimizer,
                                                world.device(), world.local_rank());
  } else {
    return Engine<typename Model::element_type>(model, std::move(config), world, optimizer);
  }
}

}  // namespace lockstep
