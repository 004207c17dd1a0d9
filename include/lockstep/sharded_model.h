#pragma once

#include <ATen/core/Tensor.h>
#include <lockstep/communicator.h>
#include <lockstep/data_parallel.h>
#include <lockstep/offload.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace torch::nn {
class Module;
}
namespace torch::optim {
class Optimizer;
}

namespace lockstep {

struct ShardedOptions {
  // What is divided over the ranks, each with what the one before it divides:
  //   0  nothing: every rank holds all
  //   1  the optimizer's state, and master weights where parameters are bf16 or fp16
  //   2  gradients
  //   3  parameters: modules inside Sharded<> are put together only while they run
  int stage = 1;

  // As in DataParallelOptions, but a parameter that no rank used counts as one with a
  // gradient of zero: weight decay and momentum move it. At stage 3 all ranks run the same
  // units, and gradients are reduced at the end of backward only.
  bool find_unused_parameters = false;
  bool broadcast_buffers = true;

  // Bytes after which a bucket is closed.
  int64_t bucket_cap_bytes = 25 << 20;
  // Stage 3: parameters of fewer elements stay whole on every rank.
  int64_t persistence_threshold = 100'000;
  // Stage 3: elements that stay whole for their parameters' smallness, at most; a small
  // parameter that does not fit any more is divided.
  int64_t persistence_limit = std::numeric_limits<int64_t>::max();
  // Stage 3: the next module is put together while this one runs, where it has no more
  // elements than this.
  bool prefetch = true;
  int64_t prefetch_limit = std::numeric_limits<int64_t>::max();
  // Full buckets are reduced while backward runs; else all of them at its end.
  bool overlap = true;
  // Updates of modules inside Sharded<> are gathered while the next forward runs: each module
  // waits for its own. Until then nothing else may read or write its parameters: call
  // finish_step() before, or gather_parameters(). Of use over NCCL and Gloo, which move data
  // while nobody waits. At stage 3 it is about the parameters that stay whole.
  bool overlap_gather = false;

  // What gradients are reduced in. Unset: their own dtype.
  std::optional<c10::ScalarType> communication_dtype = {};
  // Gradients are divided by this before they are summed, and by the rest of the world
  // size after it: against overflow of 16-bit sums. With 1 they are divided by the world
  // size before the sum, as DataParallel does, or after it.
  double gradient_predivide_factor = 1.0;
  bool divide_after_sum = false;
  // The sum over the ranks in place of the mean: nothing is divided.
  bool sum_gradients = false;

  // What lives in host memory or on a disk. The optimizer has tensors on the CPU then; its
  // class and its options stay.
  OffloadOptimizer offload_optimizer = {};
  OffloadParam offload_param = {};
  Aio aio = {};

  // Where the model trains. Parameters and buffers that are elsewhere go there, those that
  // stage 3 divides bucket by bucket: a model in host memory may be larger than the device.
  // Unset: where the parameters are.
  std::optional<c10::Device> device = {};

  // What the forward computes in under autocast, as a trainer with `precision` does: its 16-bit copies
  // of float32 weights then count in plans and in the check of memory.
  std::optional<c10::ScalarType> autocast_dtype = {};

  // What a rank may use for parameters, gradients and optimizer state, in bytes. Unset: what
  // is free on its GPU; on CPUs what RLIMIT_AS, RLIMIT_DATA and control groups leave.
  std::optional<int64_t> memory_limit_bytes = {};

  // Take an optimizer of a class that this library does not know. It must treat every
  // element by itself: it sees parts of flat buckets, not parameters.
  bool allow_untested_optimizer = false;
};

// Trains one model with its states divided over the ranks (ZeRO): each rank updates its
// part of every bucket of parameters, and the ranks give each other the results. With
// 16-bit parameters the parts are kept, and updated, in float32.
//
//   ShardedModel model(net.ptr(), optimizer, world.communicator(), {.stage = 2});
//   model.zero_grad();
//   model.prepare_forward();
//   loss(net->forward(x), y).backward();
//   model.step();
//
// Construction moves parameters into flat memory (row-major) and gives the optimizer this
// rank's parts in their place, group by group: learning rates and schedules work as ever.
// Gradients of the parameters themselves are of no use after backward: those of this
// rank's parts are in flat_gradients().
//
// All ranks construct it and make the same calls, from one thread at a time. Module and
// optimizer must outlive it and go nowhere without it; it must outlive every backward over
// the module.
class ShardedModel {
 public:
  // Keeps all parameters whole while it lives: to look at them, or to write them (every
  // rank the same), which counts from its end on. step() is refused meanwhile.
  class Gathered {
   public:
    ~Gathered();
    Gathered(Gathered&& other) noexcept : model_(std::exchange(other.model_, nullptr)) {}
    Gathered& operator=(Gathered&&) = delete;

   private:
    friend class ShardedModel;
    explicit Gathered(ShardedModel* model);
    ShardedModel* model_;
  };

  // Blocks until all ranks are here. ConfigError: the ranks' models differ; a trained
  // parameter is in no group of the optimizer, or a parameter of it is not in the model;
  // the optimizer is of a class that cannot work on parts (LBFGS), or has a state already;
  // a rank may not use as much memory as it would need, with the stage that would fit.
  ShardedModel(std::shared_ptr<torch::nn::Module> module, torch::optim::Optimizer& optimizer,
               Communicator communicator, ShardedOptions options = {});
  ~ShardedModel();
  ShardedModel(const ShardedModel&) = delete;
  ShardedModel& operator=(const ShardedModel&) = delete;

  // Before each forward, on all ranks alike. ConfigError as GradientSync.
  void prepare_forward();
  void sync_buffers();
  // Before forwards without gradients, of which all ranks make equally many at stage 3:
  // buffers are rank 0's, and units are put together as they run.
  void prepare_evaluation();

  // Forgets all gradients.
  void zero_grad();
  // Backwards inside the scope only add to this rank's gradients, which are whole
  // meanwhile; the first one after it reduces the sum.
  [[nodiscard]] GradientSync::NoSync no_sync();

  // This rank's parts of the mean gradients. Valid after a backward that reduced.
  std::vector<at::Tensor> flat_gradients() const;
  // Over all ranks' parts: scales them so that their total norm is at most max_norm, and
  // returns the norm before. Collective. norm_type may be infinity.
  at::Tensor clip_grad_norm(double max_norm, double norm_type = 2.0);
  // The norm alone, in float32 or wider, the same on all ranks: not finite where a gradient
  // of some rank is not. Collective.
  at::Tensor grad_norm(double norm_type = 2.0) const;

  // Updates this rank's parts and makes the parameters of all ranks whole again, or
  // theirs to be: stage 3 puts them together when they are needed. Collective.
  void step() { step(at::Tensor()); }
  // The same with every gradient times `factor`, one number, in the precision of the
  // update: unscaling and clipping in one pass. flat_gradients() may have changed after it.
  void step(const at::Tensor& factor);
  // With overlap_gather: waits until all that step() has started has arrived. Collective.
  void finish_step();

  [[nodiscard]] Gathered gather_parameters() { return Gathered(this); }

  const ShardedOptions& options() const;
  const Communicator& communicator() const;
  std::chrono::nanoseconds exposed_wait() const;

  // Bytes on this rank, now.
  struct Memory {
    int64_t parameters = 0;  // whole ones and parts, in their own dtype
    int64_t gradients = 0;
    int64_t master = 0;     // float32 parts of 16-bit parameters, and offloaded copies
    int64_t optimizer = 0;  // its state
    int64_t buffers = 0;    // lent to gradients and parameters for a while, or kept for it
    // The most that autocast's 16-bit copies of float32 weights take at a time. In plans alone: they
    // come and go within a step.
    int64_t casts = 0;
    // Of all these: what offload has put into host memory, and into files.
    int64_t host = 0;
    int64_t nvme = 0;
    int64_t total() const { return parameters + gradients + master + optimizer + buffers + casts; }
    int64_t device() const { return total() - host - nvme; }
  };
  Memory memory() const;

  // --- for checkpoints, which name parameters whatever the stage and the world size ---

  // Elements [first, first + data.numel()), row-major, of a tensor of this shape.
  struct Part {
    std::string name;
    std::vector<int64_t> shape;
    int64_t first = 0;
    at::Tensor data;  // the model's own memory: the next step changes it
    // Reads what is in a file and was not to be read at once; `data` has no content then. Before
    // the next step; by several threads at a time, if they like.
    std::function<at::Tensor()> read = nullptr;
  };
  // Of parts that offload keeps in a file: kLater needs no memory for all of them at a time.
  enum class Content { kNow, kLater };
  // What this rank owns of the trained parameters: in their own dtype, and in that of
  // the optimizer, which are the same parts unless parameters are 16-bit.
  std::vector<Part> parameter_parts() const;
  std::vector<Part> master_parts(Content content = Content::kNow) const;
  bool has_masters() const;
  // flat_gradients() by parameter, of the buckets that were reduced since zero_grad().
  std::vector<Part> gradient_parts() const;
  // Of all trained parameters, whoever owns them.
  std::map<std::string, std::vector<int64_t>> shapes() const;

  // Parts of "PARAMETER/FIELD", and all else, as OptimizerState has it.
  struct OptimizerParts {
    std::vector<Part> parts;
    std::string values;
  };
  OptimizerParts optimizer_parts(Content content = Content::kNow) const;

  // Fills the data of all these parts, which lie in host memory.
  using ReadParts = std::function<void(const std::vector<Part>& parts)>;
  // Collective: the ranks give each other what each has read. `read_masters` is empty where
  // nobody has saved masters: they start from the parameters then.
  void load_parameters(const ReadParts& read, const ReadParts& read_masters);
  // ConfigError: another class of optimizer or other groups.
  void load_optimizer(const std::string& values, const ReadParts& read);

  struct Impl;

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep
