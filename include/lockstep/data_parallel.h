#pragma once

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

// What a gradient hook gets: one full bucket of this rank's gradients.
struct GradientBucket {
  size_t index = 0;  // buckets are handed out in this order, the same on all ranks
  size_t count = 0;  // buckets of the model
  // Flat and contiguous; the hook leaves the reduced gradients in it.
  const at::Tensor& gradients;
  // Whose gradients these are, in the order of their places in `gradients`.
  const std::vector<std::string>& parameters;
};

// What a gradient hook started.
struct PendingReduction {
  Work work;
  // Called when `work` is done, at the end of backward, bucket by bucket; it may
  // run further collectives. May be empty.
  std::function<void()> finish;
};

// Reduces a bucket in place of the mean over the ranks. Runs inside backward, as
// soon as the bucket is full, on the thread that runs backward. Every rank must
// start the same collectives.
using GradientHook = std::function<PendingReduction(const GradientBucket&, const Communicator&)>;

enum class GradientCompression {
  kNone,
  kFloat16,  // casts, divides by the world size, sums, casts back: half the traffic
  kBFloat16
};

struct DataParallelOptions {
  // -- behaviour

  // Parameters may go without gradient in a step: they count as zero, and one that
  // no rank used keeps an undefined gradient. Costs one small all-reduce a step,
  // and buckets that miss a gradient start only at the end of backward. When
  // false, a parameter without gradient is an error that names it.
  bool find_unused_parameters = false;
  // Every step uses the same parameters. The first step learns which; later steps
  // pay nothing for unused ones, and a change is an error.
  bool static_graph = false;
  // Rank 0's buffers (running statistics) go to all ranks before a forward,
  // whenever they can have diverged.
  bool broadcast_buffers = true;
  // Compare the models of all ranks and copy rank 0's parameters and buffers at
  // construction. Switch off only when the ranks are known to be equal.
  bool init_sync = true;
  // Lossy, for slow networks. Not together with `hook`.
  GradientCompression compression = GradientCompression::kNone;
  // In place of the mean over the ranks; empty: the mean.
  GradientHook hook;

  // -- performance

  // Bytes after which a bucket is closed. A smaller one starts earlier, a larger
  // one moves faster. nullopt: 25 MiB, and 1 MiB for the first, so that
  // communication starts early.
  std::optional<int64_t> bucket_cap_bytes;
  // nullopt: bucket_cap_bytes where that is given.
  std::optional<int64_t> first_bucket_cap_bytes;
};

// Keeps the gradients of one model equal on all ranks: during backward every
// gradient becomes the mean over the ranks. The module itself is left as it is;
// train it as ever, with prepare_forward() before each forward.
//
// Gradients live in flat buckets, one a dtype and device and some megabytes, and
// every parameter's grad() is a view of its bucket: there is no second copy. A
// bucket is reduced as soon as backward has filled it, in a fixed order that is the
// reverse of registration (never rebuilt by arrival), from the first step on. In a
// world of one without a communication hook nothing is reduced, so there are no
// buckets and gradients stay where autograd made them.
//
// All ranks construct it and run the same forwards and backwards. Calls come from
// one thread at a time. The object must outlive every backward over the module.
class GradientSync {
 public:
  // Switches reduction off while it lives. Must not outlive its GradientSync.
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

  // Blocks until all ranks are here. ConfigError: the ranks' models differ (it says
  // which parameter on which rank and how), or an option makes no sense.
  GradientSync(std::shared_ptr<torch::nn::Module> module, Communicator communicator,
               DataParallelOptions options = {});
  // For the library's own layers: with buckets made by rules.
  GradientSync(std::shared_ptr<torch::nn::Module> module, Communicator communicator,
               DataParallelOptions options, const parallel::BucketRules& rules);
  ~GradientSync();
  GradientSync(const GradientSync&) = delete;
  GradientSync& operator=(const GradientSync&) = delete;

  // Call before each forward, on all ranks alike. Brings buffers up to date and
  // checks that no parameter was frozen, unfrozen or converted (ConfigError).
  void prepare_forward();
  // Copies rank 0's buffers to all ranks now, before an evaluation for example.
  void sync_buffers();

  // Gradients become undefined until the next backward, as with PyTorch's
  // zero_grad(). An optimizer's own works too.
  void zero_grad();

  // Backwards inside the scope only add to this rank's gradients; the first one
  // after it reduces the sum:
  //   { auto scope = ddp.no_sync(); loss(a).backward(); }
  //   loss(b).backward();
  [[nodiscard]] NoSync no_sync() { return NoSync(this); }

  // After a backward that reduced: scales all gradients so that their total norm is
  // at most max_norm; returns the
  // norm before, a scalar on the gradients' device. norm_type may be infinity.
  at::Tensor clip_grad_norm(double max_norm, double norm_type = 2.0);

  // The memory of all gradients, bucket by bucket, or parameter by parameter where the rank
  // is alone: for unscaling, or to change them in place. Valid from a backward that reduced
  // to the next zero_grad().
  std::vector<at::Tensor> flat_gradients() const;

  // Time, in all, that backwards waited at their end for collectives: communication that
  // nothing hid. Zero on CUDA, where the device waits.
  std::chrono::nanoseconds exposed_wait() const;

  struct BucketStats {
    int64_t bytes = 0;
    std::vector<std::string> parameters;
  };
  std::vector<BucketStats> buckets() const;
  // All memory that gradients take.
  int64_t gradient_bytes() const;

  const Communicator& communicator() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// A module with GradientSync around it: forward() prepares, then calls the module's.
//
//   torch::nn::Sequential net(...);
//   lockstep::DataParallel model(net, world.communicator());
//   auto loss = torch::mse_loss(model.forward(x), y);
//   loss.backward();
template <typename M>
class DataParallel : public GradientSync {
 public:
  DataParallel(std::shared_ptr<M> module, Communicator communicator, DataParallelOptions options = {})
      : GradientSync(module, std::move(communicator), std::move(options)), module_(std::move(module)) {}

  // LibTorch's ModuleHolder: torch::nn::Linear is one, over LinearImpl.
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
