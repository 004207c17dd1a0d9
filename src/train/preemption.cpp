#include <signal.h>

#include <fmt/format.h>
#include <lockstep/error.h>
#include <lockstep/launch.h>
#include <string.h>
#include <torch/torch.h>

#include <algorithm>
#include <array>

#include "base/environment.h"
#include "base/log.h"
#include "cluster/job_deadline.h"
#include "train/signal_watch.h"

namespace lockstep {
namespace {

using Clock = std::chrono::steady_clock;

std::vector<int> signals_or_default(const std::vector<int>& signals) {
  return signals.empty() ? std::vector<int>{SIGTERM, SIGUSR1, SIGUSR2} : signals;
}

}  // namespace

struct Preemption::Impl {
  Impl(const World& world_, const PreemptionOptions& options_)
      : world(world_), options(options_), signals(signals_or_default(options_.signals)) {
    on_main_rank(world.communicator(), [this] {
      find_deadline();
      return std::string();
    });
    last_asked = Clock::now();
  }

  // On rank 0 only: one clock decides, and squeue is called once.
  void find_deadline() {
    const base::Environment environment = base::Environment::of_process();
    const cluster::WallTime now = std::chrono::system_clock::now();
    const auto found = cluster::job_deadline(environment, options.time_limit, now,
                                             [&] { return cluster::ask_squeue_for_end(environment); });
    if (!found) return;
    const std::chrono::seconds margin = cluster::stop_margin(options.margin, found->time - now);
    deadline = found->time - margin;
    base::log_info("train", "the job stops {} s before its end (known from {})", margin.count(),
                   found->source);
  }

  bool ask_all() {
    const double elapsed = std::chrono::duration<double>(Clock::now() - last_asked).count();
    const int signal = signals.received();
    const bool late = deadline && std::chrono::system_clock::now() >= *deadline;
    const std::array<double, 4> vote =
        largest({signal != 0 ? world.rank() + 1.0 : 0.0, static_cast<double>(signal), late ? 1.0 : 0.0,
                 elapsed / static_cast<double>(interval)});
    if (vote[0] > 0) {
      const char* name = ::sigabbrev_np(static_cast<int>(vote[1]));
      agreed_signal = static_cast<int>(vote[1]);
      reason = fmt::format("rank {} got SIG{}", vote[0] - 1, name != nullptr ? name : "?");
    } else if (vote[2] > 0) {
      reason = "the job's time limit comes near";
    }
    choose_interval(vote[3]);
    return !reason.empty();
  }

  // The maximum over all ranks. A single rank does not wait for its device.
  std::array<double, 4> largest(std::array<double, 4> own) const {
    if (world.size() == 1) return own;
    const at::Tensor here = torch::from_blob(own.data(), {4}, torch::kFloat64);
    const at::Tensor votes = here.to(world.device(), torch::kFloat64, /*non_blocking=*/false, /*copy=*/true);
    world.communicator().all_reduce(votes, ReduceOp::kMax).wait();
    here.copy_(votes);
    return own;
  }

  // The slowest rank's step decides, so that all ranks communicate after the same step. The interval
  // grows slowly, because steps may become slower again.
  void choose_interval(double seconds_per_step) {
    const double period = std::chrono::duration<double>(options.period).count();
    const double wanted = seconds_per_step > 0 ? period / seconds_per_step : 1;
    interval = std::clamp<int64_t>(static_cast<int64_t>(wanted), 1, 2 * interval);
    steps = 0;
    last_asked = Clock::now();
  }

  const World& world;
  const PreemptionOptions options;
  train::SignalWatch signals;
  std::optional<cluster::WallTime> deadline;
  int64_t steps = 0;
  int64_t interval = 1;  // steps between two exchanges; the same on all ranks
  Clock::time_point last_asked;
  std::string reason;
  int agreed_signal = 0;
};

Preemption::Preemption(const World& world, PreemptionOptions options)
    : impl_(std::make_unique<Impl>(world, options)) {}

Preemption::~Preemption() = default;

bool Preemption::requested() {
  if (!impl_->reason.empty()) return true;
  if (++impl_->steps < impl_->interval) return false;
  return impl_->ask_all();
}

const std::string& Preemption::reason() const { return impl_->reason; }

int Preemption::signal() const { return impl_->agreed_signal; }

void Preemption::leave() {
  impl_->world.communicator().barrier();
  // When the first rank ends, srun sends SIGTERM to the others: they must still end with the status
  // that queues the job again.
  impl_->signals.keep_for_good();
  throw Preempted("train", fmt::format("asked to stop, and saved: {}", impl_->reason));
}

}  // namespace lockstep
