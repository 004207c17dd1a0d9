#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <lockstep/communicator.h>
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

namespace train {
class Autocast;
}

struct SaveCheckpointOptions {
  // Checkpoints of one tag are in a folder of that name; empty: in the folder itself.
  std::string tag = {};
  // The program's own, as JSON; load_checkpoint() gives it back.
  std::string client_state = "null";
  // How long the ranks may be apart when they come to save.
  std::chrono::milliseconds patience = std::chrono::seconds(10);
};

struct LoadCheckpointOptions {
  std::string tag = {};
  // Off: the optimizer's state stays as it is.
  bool load_optimizer_states = true;
  bool load_lr_scheduler_states = true;
  // Weights alone: counters, loss scale and all else stay as they are.
  bool load_module_only = false;
};

struct LoadedCheckpoint {
  std::filesystem::path path;
  std::string client_state;  // "null" where the checkpoint has none
};

// Trains a model as a DeepSpeed configuration says: see Engine, which adds forward(). All
// ranks make the same calls, from one thread at a time; each of them may block for the others.
class EngineCore {
 public:
  struct Impl;

  // While it lives, backward() adds to this rank's gradients only; step() is refused. The
  // next backward() that reduces, at stages 0 and 1 the last of a step, takes them along.
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

  // The configuration is taken as checked by its reader. `optimizer`: the program's own, null
  // for the one that the configuration names. ConfigError: what the configuration asks for
  // and nothing acts on, with its place; no optimizer or two of them; whatever ShardedModel
  // refuses. `device`: where the model trains; unset: where it is. With offload_param it stays
  // in host memory and is brought there bucket by bucket.
  EngineCore(std::shared_ptr<torch::nn::Module> module, DeepSpeedConfig config, Communicator communicator,
             torch::optim::Optimizer* optimizer, std::optional<c10::Device> device);
  ~EngineCore();
  EngineCore(EngineCore&&) noexcept;
  EngineCore& operator=(EngineCore&&) = delete;

  // `loss`: the mean of one micro batch on this rank, one number. It is divided by the
  // accumulation steps and scaled before its backward.
  void backward(const at::Tensor& loss);
  // Once after each backward(). Counts a micro batch; with the last one of a step clips,
  // updates, moves learning rate and loss scale, and forgets the gradients. A step with a
  // gradient that is not finite on some rank is left out by all of them (fp16, bf16).
  // ConfigError: no backward() before it, inside no_sync(), an overflow at the least loss
  // scale; or it is to update, and the last backward() was inside no_sync(), so that its
  // gradients are not reduced. They are kept: call a backward() outside of it, then step().
  void step();
  [[nodiscard]] NoSync no_sync() { return NoSync(impl_.get()); }

  // Whether the step() to come updates; always where managed_gradient_accumulation is false.
  bool is_gradient_accumulation_boundary() const;
  // Whether the last step() changed the weights.
  bool was_step_applied() const;
  int64_t micro_steps() const;     // calls of step()
  int64_t global_steps() const;    // those that ended a step, the skipped ones included
  int64_t skipped_steps() const;   // those of them that overflowed
  int64_t global_samples() const;  // of all ranks
  // Of each parameter group, for the step to come.
  std::vector<double> get_lr() const;
  // Of the last step, over all ranks, unscaled and before clipping; nothing before it. Waits
  // for the device. Not finite where the step was skipped.
  std::optional<double> get_global_grad_norm() const;
  double loss_scale() const;  // 1 where there is none
  // All three. Where the file has no batch size they are known after the first forward.
  DeepSpeedConfig::BatchTriple batch() const;

  // Saves what all ranks hold, in the folder that all see, as a checkpoint of the project's
  // format (docs/checkpoints.md): any stage and any number of ranks can load it, so can the
  // trainer, and `lockstep ckpt` reads it. Returns its path. Blocks until it is on disk.
  // ConfigError: gradients of an unfinished step would be lost, the ranks' tags differ and
  // tag_validation is Fail, or some ranks did not come, and which. CheckpointError on all ranks
  // where one failed.
  std::filesystem::path save_checkpoint(const std::filesystem::path& folder,
                                        const SaveCheckpointOptions& options = {});
  // Goes on from the newest valid one, which may be of a trainer's run folder; nothing where
  // there is none, with a warning.
  // ConfigError: it is of another model or another optimizer.
  std::optional<LoadedCheckpoint> load_checkpoint(const std::filesystem::path& folder,
                                                  const LoadCheckpointOptions& options = {});
  // Writes the whole weights in the model's dtype to one file, by rank 0: "*.safetensors", or
  // any other name for torch.load. False, with a warning, at stage 3 unless
  // stage3_gather_16bit_weights_on_model_save says that memory is there for all of them.
  bool save_16bit_model(const std::filesystem::path& folder, const std::string& file = "model.safetensors");

  // With comms_logger: logs count, time and bandwidth of each collective and size so far, on
  // rank 0, as the end of the engine does. `show_straggler`: also how much of it was waiting
  // for the last rank; collective then. ConfigError: comms_logger is not enabled.
  void log_comms_summary(bool show_straggler = false) const;

  const DeepSpeedConfig& config() const;
  const Communicator& communicator() const;
  torch::optim::Optimizer& optimizer();
  // Makes the parameters readable while the result lives: stage 3 needs it, and with
  // overlap_comm true modules inside Sharded<> at every stage, whose updates may still be on
  // their way.
  [[nodiscard]] std::shared_ptr<void> gather_parameters();

 protected:
  // Around one forward.
  class Forward {
   public:
    ~Forward();
    Forward(const Forward&) = delete;
    Forward& operator=(const Forward&) = delete;

   private:
    friend class EngineCore;
    Forward(EngineCore& engine, std::optional<int64_t> batch_size);
    Impl& impl_;
    std::unique_ptr<train::Autocast> autocast_;
  };
  // ConfigError: the first batch that is trained on is not the configuration's.
  Forward begin_forward(std::optional<int64_t> batch_size) { return {*this, batch_size}; }
  // As the model takes it: in 16 bit where fp16.auto_cast is set.
  at::Tensor input(const at::Tensor& tensor) const;
  Impl& impl() { return *impl_; }
  const Impl& impl() const { return *impl_; }

 private:
  std::unique_ptr<Impl> impl_;
};

// A model with all that its DeepSpeed configuration asks for: precision, sharding, optimizer,
// learning rate, accumulation, loss scale, clipping, progress lines, monitors.
//
//   auto engine = lockstep::initialize(net, config, world);
//   for (auto& [x, y] : batches) {
//     engine.backward(torch::mse_loss(engine.forward(x), y));
//     engine.step();
//   }
//
// The model is converted to the configuration's dtype and must outlive every backward; the
// engine must, too. An own optimizer must outlive the engine.
template <typename M>
class Engine : public EngineCore {
 public:
  Engine(std::shared_ptr<M> module, DeepSpeedConfig config, Communicator communicator,
         torch::optim::Optimizer* optimizer = nullptr, std::optional<c10::Device> device = {})
      : EngineCore(module, std::move(config), std::move(communicator), optimizer, device),
        module_(std::move(module)) {}

  // The module's forward. The first tensor's first dimension is the batch.
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

// `model`: a shared pointer to a module, or LibTorch's holder of one (torch::nn::Linear).
// `world`: a World, to whose device the model is moved, or a Communicator; then the model
// stays where it is. Blocks until all ranks are here.
template <typename Model, typename Ranks>
auto initialize(const Model& model, DeepSpeedConfig config, const Ranks& world,
                torch::optim::Optimizer* optimizer = nullptr) {
  if constexpr (requires { model.ptr(); }) {
    return initialize(model.ptr(), std::move(config), world, optimizer);
  } else if constexpr (requires { world.communicator(); }) {
    return Engine<typename Model::element_type>(model, std::move(config), world.communicator(), optimizer,
                                                world.device());
  } else {
    return Engine<typename Model::element_type>(model, std::move(config), world, optimizer);
  }
}

}  // namespace lockstep
