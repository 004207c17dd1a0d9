#include <fmt/format.h>
#include <lockstep/error.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <algorithm>
#include <csignal>
#include <functional>
#include <set>

#include "base/log.h"
#include "base/mutex.h"
#include "comm/backends.h"
#include "comm/gloo_device.h"
#include "torch_private/c10d.h"

namespace lockstep::comm {

namespace {

using WorkPtr = c10::intrusive_ptr<c10d::Work>;
using GlooCollectives = torch_private::WithOldNames<c10d::ProcessGroupGloo>;

// A Work followed by a step in the thread that waits for it, here the copy of the result to its
// output. The step runs once, after success only.
class ThenWork final : public c10d::Work {
 public:
  ThenWork(int rank, c10d::OpType operation, WorkPtr first, std::function<void()> then)
      : Work(rank, operation), first_(std::move(first)), then_(std::move(then)) {}

  bool wait(std::chrono::milliseconds timeout) override {
    first_->wait(timeout);
    run();
    return true;
  }

  bool isCompleted() override {
    if (!first_->isCompleted()) return false;
    if (first_->isSuccess()) run();
    return true;
  }

  bool isSuccess() const override { return first_->isSuccess(); }
  std::exception_ptr exception() const override { return first_->exception(); }

 private:
  void run() {
    if (then_) std::exchange(then_, nullptr)();
  }

  WorkPtr first_;
  std::function<void()> then_;
};

// Starting an operation writes to LibTorch's flight recorder, of which a process has one. The
// recorder looks up its groups in a map without a lock: two groups in two threads would crash.
template <typename Start>
WorkPtr start_alone(Start&& start) {
  static base::Mutex mutex;
  const base::MutexLock lock(mutex);
  return start();
}

// Averages as all backends do (transport.h): each contribution times 1/size, then the sum.
class GlooBackend final : public GlooCollectives {
 public:
  using GlooCollectives::GlooCollectives;

  WorkPtr broadcast(std::vector<at::Tensor>& tensors, const c10d::BroadcastOptions& options) override {
    return start_alone([&] { return ProcessGroupGloo::broadcast(tensors, options); });
  }

  // Gloo has no AVG.
  WorkPtr allreduce(std::vector<at::Tensor>& tensors, const c10d::AllreduceOptions& options) override {
    c10d::AllreduceOptions sum = options;
    if (options.reduceOp.op_ == c10d::ReduceOp::AVG) {
      at::NoGradGuard no_grad;
      for (at::Tensor& tensor : tensors) {
        tensor.mul_(1.0 / getSize());
      }
      sum.reduceOp = c10d::ReduceOp::SUM;
    }
    return start_alone([&] { return ProcessGroupGloo::allreduce(tensors, sum); });
  }

  // Gloo has no reduce-scatter: c10d's is an all-reduce too, without AVG.
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& options) override {
    // If the output is a part of the input, the caller gives up the input.
    const bool in_place = output.is_alias_of(input);
    at::Tensor whole = in_place ? input.detach() : input.detach().clone();
    std::vector<at::Tensor> tensors{whole};
    c10d::AllreduceOptions all_reduce;
    all_reduce.reduceOp = options.reduceOp;
    all_reduce.timeout = options.timeout;
    return c10::make_intrusive<ThenWork>(getRank(), c10d::OpType::_REDUCE_SCATTER_BASE,
                                         allreduce(tensors, all_reduce),
                                         [output, whole, rank = getRank(), size = getSize()] {
                                           at::NoGradGuard no_grad;
                                           output.view(-1).copy_(whole.view({size, -1})[rank]);
                                         });
  }

  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input,
                          const c10d::AllgatherOptions& options) override {
    return start_alone([&] { return GlooCollectives::_allgather_base(output, input, options); });
  }

  WorkPtr gather(std::vector<std::vector<at::Tensor>>& outputs, std::vector<at::Tensor>& inputs,
                 const c10d::GatherOptions& options) override {
    return start_alone([&] { return ProcessGroupGloo::gather(outputs, inputs, options); });
  }

  WorkPtr scatter(std::vector<at::Tensor>& outputs, std::vector<std::vector<at::Tensor>>& inputs,
                  const c10d::ScatterOptions& options) override {
    return start_alone([&] { return ProcessGroupGloo::scatter(outputs, inputs, options); });
  }

  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
                        std::vector<int64_t>& input_splits, const c10d::AllToAllOptions& options) override {
    return start_alone(
        [&] { return GlooCollectives::alltoall_base(output, input, output_splits, input_splits, options); });
  }

  WorkPtr send(std::vector<at::Tensor>& tensors, int destination, int tag) override {
    return start_alone([&] { return ProcessGroupGloo::send(tensors, destination, tag); });
  }

  WorkPtr recv(std::vector<at::Tensor>& tensors, int source, int tag) override {
    return start_alone([&] { return ProcessGroupGloo::recv(tensors, source, tag); });
  }

  WorkPtr barrier(const c10d::BarrierOptions& options) override {
    return start_alone([&] { return ProcessGroupGloo::barrier(options); });
  }

  void abort() override {
    for (const auto& context : contexts_) {
      for (int rank = 0; rank < getSize(); ++rank) {
        if (auto* pair = reinterpret_cast<gloo::transport::tcp::Pair*>(context->getPair(rank).get())) {
          pair->signalExceptionExternal("aborted because a rank of the job is gone");
        }
      }
    }
  }
};

// Gloo's writes raise SIGPIPE once the peer is gone, which would end this process before it can
// report why. Python ignores the signal in every program.
void ignore_broken_pipes() {
  struct sigaction current {};
  if (::sigaction(SIGPIPE, nullptr, &current) == 0 && current.sa_handler == SIG_DFL) {
    ::signal(SIGPIPE, SIG_IGN);
  }
}

// A group and the sockets on which its devices listen.
struct GlooGroup {
  c10::intrusive_ptr<GlooBackend> backend;
  std::vector<int> listeners;
};

// Gloo's devices, and the listening sockets that they made, which Gloo's interface does not show.
class GlooDevices {
 public:
  explicit GlooDevices(const std::vector<GlooDevice>& chosen) {
    // Ranks that are threads of one process must not see each other's new sockets.
    static base::Mutex mutex;
    const base::MutexLock lock(mutex);
    const std::set<int> before = listening_sockets();
    for (const GlooDevice& device : chosen) {
      devices.push_back(device.interface.empty()
                            ? c10d::ProcessGroupGloo::createDeviceForHostname(device.address)
                            : c10d::ProcessGroupGloo::createDeviceForInterface(device.interface));
    }
    for (const int fd : listening_sockets()) {
      if (!before.contains(fd)) listeners.push_back(fd);
    }
  }

  std::vector<std::shared_ptr<gloo::transport::Device>> devices;
  std::vector<int> listeners;
};

GlooGroup connect_group(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                        const GlooOptions& options) {
  auto gloo = c10d::ProcessGroupGloo::Options::create(options.connect_timeout);
  const auto chosen =
      choose_gloo_devices(options.interface, base::Environment::of_process(), options.rendezvous_address);
  GlooDevices made(chosen);
  gloo->devices = std::move(made.devices);
  gloo->threads = static_cast<int>(chosen.size()) * 2;
  return {c10::make_intrusive<GlooBackend>(store, rank, size, std::move(gloo)), std::move(made.listeners)};
}

at::Tensor proof_tensor(const base::JobToken& secret, const std::string& group, int from, int to) {
  const base::Proof proof = secret.sign(fmt::format("gloo {} from {} to {}", group, from, to));
  at::Tensor tensor = at::empty({static_cast<int64_t>(proof.size())}, at::kByte);
  std::copy(proof.begin(), proof.end(), tensor.data_ptr<uint8_t>());
  return tensor;
}

// Whether each connection leads to the rank that Gloo takes it for. `group`: a text that no other
// attempt and no other group of the job has.
bool peers_are_authentic(GlooBackend& backend, const base::JobToken& secret, const std::string& group,
                         std::chrono::milliseconds timeout) {
  constexpr int kTag = 0x10c5;
  const int rank = backend.getRank(), size = backend.getSize();
  std::vector<at::Tensor> expected, received, sent;
  std::vector<WorkPtr> works;
  try {
    for (int peer = 0; peer < size; ++peer) {
      if (peer == rank) continue;
      expected.push_back(proof_tensor(secret, group, peer, rank));
      received.push_back(at::zeros_like(expected.back()));
      std::vector<at::Tensor> incoming{received.back()};
      works.push_back(backend.recv(incoming, peer, kTag));
      sent.push_back(proof_tensor(secret, group, rank, peer));
      std::vector<at::Tensor> outgoing{sent.back()};
      works.push_back(backend.send(outgoing, peer, kTag));
    }
    for (const WorkPtr& work : works) {
      if (!work->wait(timeout)) return false;
    }
  } catch (const std::exception& error) {
    base::log_debug("gloo", "rank {} could not authenticate its connections: {}", rank, error.what());
    return false;
  }
  for (size_t i = 0; i < expected.size(); ++i) {
    if (!expected[i].equal(received[i])) return false;
  }
  return true;
}

// Whether `own` is true on all ranks; all get the same answer.
bool true_on_all_ranks(c10d::Store& store, int size, bool own, std::chrono::milliseconds timeout) {
  store.add("unproven", own ? 0 : 1);
  if (store.add("tried", 1) == size) store.set("verdict", std::to_string(store.add("unproven", 0)));
  store.wait({"verdict"}, timeout);
  return store.get_to_str("verdict") == "0";
}

}  // namespace

c10::intrusive_ptr<c10d::Backend> make_gloo_backend(c10::intrusive_ptr<c10d::Store> store, int rank, int size,
                                                    const GlooOptions& options) {
  ignore_broken_pipes();
  GlooGroup group;
  if (!options.secret || size == 1) {
    group = connect_group(store, rank, size, options);
  } else {
    // Other clients would have to find the new port within milliseconds, at each attempt.
    constexpr int kAttempts = 5;
    constexpr std::chrono::milliseconds kProofTime{20'000};
    for (int attempt = 0;; ++attempt) {
      const std::string name = fmt::format("gloo{}", attempt);
      const auto below = c10::make_intrusive<c10d::PrefixStore>(name, store);
      group = connect_group(below, rank, size, options);
      if (rank == 0) below->set("nonce", base::make_token());
      const bool authentic = peers_are_authentic(*group.backend, *options.secret, below->get_to_str("nonce"),
                                                 std::min(options.connect_timeout, kProofTime));
      if (true_on_all_ranks(*below, size, authentic, options.connect_timeout)) break;
      group.backend->abort();
      if (attempt + 1 == kAttempts) {
        throw CommError(
            "gloo",
            fmt::format("rank {} of {}: clients that are not ranks of the job connected to Gloo's ports, {} "
                        "times in a row; docs/security.md explains how to run on such a network",
                        rank, size, kAttempts),
            CommError::Recovery::kRebuild);
      }
      base::log_warning("gloo",
                        "a client that is not of this job has connected to Gloo's port; connecting again");
    }
    for (const int listener : group.listeners) refuse_connections(listener);
  }
  group.backend->setTimeout(options.timeout);
  return group.backend;
}

}  // namespace lockstep::comm
