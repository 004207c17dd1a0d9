#pragma once

// Data parallelism for a training loop of your own: during backward every gradient becomes the mean
// over all ranks, while the rest of backward still runs. DataParallel wraps a module and its forward();
// GradientSync does the same without the type of the module. The trainer uses it by itself.
//
// Example:
//
//   lockstep::DataParallel model(net, world.communicator());
//   lockstep::Loader share = loader.shard(world.rank(), world.size(), lockstep::ShardKind::kTrain);
//   for (lockstep::Batch& batch : share.epoch(0)) {
//     model.zero_grad();
//     torch::mse_loss(model.forward(batch.data()), batch.target()).backward();
//     optimizer.step();
//   }
//
// More: docs/grad.md

#include <lockstep/communicator.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace torch::nn {
class Module;
}

namespace lockstep {

namespace parallel {
struct BucketRules;
}

// The argument of a gradient hook: one full bucket of this rank's gradients.
struct GradientBucket {
  size_t index = 0;  // hooks run in this order, the same on all ranks
  size_t count = 0;  // number of buckets of the model
  // Flat and contiguous. The hook writes the reduced gradients into it.
  const at::Tensor& gradients;
  // The names of the parameters, in the order of their gradients in `gradients`.
  const std::vector<std::string>& parameters;
};

// The operation that a gradient hook started.
struct PendingReduction {
  Work work;
  // Called after `work` is done, at the end of backward, bucket by bucket. It may run further
  // collectives. May be empty.
  std::function<void()> finish;
};

// Reduces a bucket, in place of the mean over the ranks. Runs inside backward as soon as the bucket is
// full, on the thread that runs backward. Every rank must start the same collectives.
using GradientHook = std::function<PendingReduction(const GradientBucket&, const Communicator&)>;

enum class GradientCompression {
  kNone,
  kFloat16,  // cast, divide by the world size, sum, cast back: half the traffic
  kBFloat16
};

struct DataParallelOptions {
  // -- behaviour

  // true: parameters may have no gradient in a step. A missing gradient counts as zero; if no rank has
  // used the parameter, its gradient stays undefined. Costs one small all-reduce for each step, and
  // buckets with missing gradients start only at the end of backward. false: a parameter without
  // gradient is a ConfigError that names it.
  bool find_unused_parameters = false;
  // Every step uses the same parameters. The first step finds out which; later steps have no cost for
  // unused ones, and a change is a ConfigError.
  bool static_graph = false;
  // Copies rank 0's buffers (running statistics) to all ranks before a forward, if they can differ.
  bool broadcast_buffers = true;
  // Compares the models of all ranks and copies rank 0's parameters and buffers at construction. Set it
  // to false only if the ranks are known to be equal.
  bool init_sync = true;
  // Lossy, for slow networks. Excludes `hook`.
  GradientCompression compression = GradientCompression::kNone;
  // Replaces the mean over the ranks. Empty: the mean.
  GradientHook hook;

  // -- performance

  // Bytes after which a bucket is closed. Small buckets start earlier, large buckets transfer faster.
  // nullopt: 25 MiB, and 1 MiB for the first one, so that communication starts early.
  std::optional<int64_t> bucket_cap_bytes;
  // The same for the first bucket. nullopt: bucket_cap_bytes if that is set.
  std::optional<int64_t> first_bucket_cap_bytes;
};

// Keeps the gradients of one model equal on all ranks: during backward every gradient becomes the mean
// over the ranks. The module itself is not changed; call prepare_forward() before each forward, and
// train it as without GradientSync.
//
// Gradients are in flat buckets of some megabytes, separate for each dtype and device, and every
// parameter's grad() is a view of its bucket: there is no second copy. A bucket is reduced as soon as
// backward has filled it. The order of buckets is fixed, the reverse of registration, from the first
// step on. In a world of one without a hook nothing is reduced: there are no buckets, and gradients
// stay where autograd made them.
//
// Collective: all ranks construct it and run the same forwards and backwards. One thread at a time. The
// object must outlive every backward over the module.
class GradientSync {
 public:
  // Switches reduction off while it exists. Must not outlive its GradientSync.
  class NoSync {
   public:
    ~NoSync();
    NoSync(NoSync&& other) noexcept : sync_(std::exchange(other.sync_, nullptr)) {}
    NoSync& operator=(NoSync&&) = delete;

   private:
    friend class GradientSync;
    explicit NoSync(GradientSync* sync);
    GradientSync* sync_;
  };

  // Collective; blocks until all ranks are here. ConfigError: the ranks' models differ (it names the
  // parameter, the rank and the difference), or an option is not valid.
  GradientSync(std::shared_ptr<torch::nn::Module> module, Communicator communicator,
               DataParallelOptions options = {});
  // For the library's own layers: buckets by `rules`.
  GradientSync(std::shared_ptr<torch::nn::Module> module, Communicator communicator,
               DataParallelOptions options, const parallel::BucketRules& rules);
  ~GradientSync();
  GradientSync(const GradientSync&) = delete;
  GradientSync& operator=(const GradientSync&) = delete;

  // Call it before each forward, on all ranks. Updates buffers, and checks that no parameter was
  // frozen, unfrozen or converted (ConfigError). Collective.
  void prepare_forward();
  // Copies rank 0's buffers to all ranks now, for example before an evaluation. Collective.
  void sync_buffers();

  // Makes the gradients undefined until the next backward, as PyTorch's zero_grad() does. The
  // optimizer's zero_grad() works too.
  void zero_grad();

  // Backwards inside the scope only add to this rank's gradients; the first backward after it reduces
  // the sum:
  //   { auto scope = ddp.no_sync(); loss(a).backward(); }
  //   loss(b).backward();
  [[nodiscard]] NoSync no_sync() { return NoSync(this); }

  // Scales all gradients so that their total norm is at most max_norm. Returns the norm before that, a
  // scalar on the gradients' device. norm_type may be infinity. Call it after a backward that reduced.
  // No communication: all ranks have the same gradients.
  at::Tensor clip_grad_norm(double max_norm, double norm_type = 2.0);

  // The memory of all gradients, bucket by bucket, or parameter by parameter in a world of one: to
  // unscale or change them in place. Valid from a backward that reduced until the next zero_grad().
  std::vector<at::Tensor> flat_gradients() const;

  // Total time that backwards have waited at their end for collectives, that is, communication that did
  // not overlap. Zero on CUDA, where the device waits.
  std::chrono::nanoseconds exposed_wait() const;

  struct BucketStats {
    int64_t bytes = 0;
    std::vector<std::string> parameters;
  };
  // The buckets in their order.
  std::vector<BucketStats> buckets() const;
  // Bytes of all gradients on this rank.
  int64_t gradient_bytes() const;

  const Communicator& communicator() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// A module together with its GradientSync: forward() calls prepare_forward() and then the module's
// forward. Shares ownership of the module.
template <typename M>
class DataParallel : public GradientSync {
 public:
  DataParallel(std::shared_ptr<M> module, Communicator communicator, DataParallelOptions options = {})
      : GradientSync(module, std::move(communicator), std::move(options)), module_(std::move(module)) {}

  // For LibTorch's module holders: torch::nn::Linear is the holder of LinearImpl.
  template <typename Holder>
  requires requires(const Holder& holder) { holder.ptr(); }
  DataParallel(const Holder& holder, Communicator communicator, DataParallelOptions options = {})
      : DataParallel(holder.ptr(), std::move(communicator), std::move(options)) {}

  template <typename... Args>
  auto forward(Args&&... args) {
    prepare_forward();
    return module_->forward(std::forward<Args>(args)...);
  }

  const std::shared_ptr<M>& module() const { return module_; }
  M* operator->() const { return module_.get(); }

 private:
  std::shared_ptr<M> module_;
};

template <typename Holder>
requires requires { typename Holder::ContainedType; }
DataParallel(const Holder&, Communicator, DataParallelOptions = {})
    ->DataParallel<typename Holder::ContainedType>;

}  // namespace lockstep
