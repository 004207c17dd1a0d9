// Ranks over NCCL, one of which dies, stands still or leaves: the others end soon, and name it.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/c10d.h>
#include <lockstep/communicator.h>
#include <lockstep/error.h>
#include <signal.h>
#include <sys/stat.h>
#include <torch/torch.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "base/progress.h"
#include "comm/lifeline.h"
#include "support/gpu.h"

namespace lockstep {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using test::ExitStatus;
using test::RankProcesses;
using testing::AllOf;
using testing::HasSubstr;

// Far below any timeout that the tests below do not wait for, far above what an abort takes.
constexpr seconds kSoon{20};
constexpr seconds kNever{300};

struct Ending {
  std::string text = "nothing was thrown";
  std::optional<int> rank;
  seconds after{0};
};

// Reads results on the host, as a training does, until an operation throws.
Ending run_until_failure(const Communicator& group, c10::Device device,
                         std::optional<milliseconds> timeout = {}) {
  const auto began = std::chrono::steady_clock::now();
  const auto elapsed = [&] {
    return std::chrono::duration_cast<seconds>(std::chrono::steady_clock::now() - began);
  };
  try {
    while (elapsed() < kNever) {
      const at::Tensor tensor = torch::ones({100000}, device);
      group.all_reduce(tensor, ReduceOp::kSum, timeout).wait();
      tensor.sum().item<double>();
    }
    return {};
  } catch (const CommError& error) {
    return {error.what(), error.failed_rank(), elapsed()};
  }
}

void expect_ended_by(const Ending& ending, int rank, const std::string& how) {
  EXPECT_THAT(ending.text, AllOf(HasSubstr("rank " + std::to_string(rank)), HasSubstr(how)));
  EXPECT_EQ(ending.rank, rank) << ending.text;
  EXPECT_LT(ending.after, kSoon) << ending.text;
}

class GpuNcclFailureTest : public test::GpuTest {
 protected:
  // A collective that all take part in; when it returns, all have read it.
  void warm_up(const Communicator& group) const {
    const at::Tensor tensor = torch::ones({1000}, device());
    group.all_reduce(tensor).wait();
    EXPECT_EQ(tensor.sum().item<double>(), 1000.0 * group.size());
    group.meet("the end of the first collective", seconds(60));
  }

  // The group is broken for good, in every operation.
  void expect_broken(const Communicator& group) const {
    EXPECT_THROW(group.barrier(), CommError);
    EXPECT_THROW(group.broadcast_bytes("x"), CommError);
    EXPECT_THROW(group.all_reduce(torch::ones({3}, device())), CommError);
  }

  void expect_death_is_named(int size) const {
    const int victim = size - 1;
    run_nccl(RankProcesses{.size = size, .ends = {{victim, ExitStatus{-1, SIGKILL}}}}, kNever,
             [&](World& world) {
               const Communicator& group = world.communicator();
               warm_up(group);
               if (world.rank() == victim) raise(SIGKILL);
               expect_ended_by(run_until_failure(group, device()), victim, "died");
               expect_broken(group);
             });
  }
};

TEST_F(GpuNcclFailureTest, AKilledRankOverNcclTwoRanks) { expect_death_is_named(2); }

TEST_F(GpuNcclFailureTest, AKilledRankOverNcclFourRanks) { expect_death_is_named(4); }

// A barrier blocks in NCCL's own wait, which does not tell an abort from success.
TEST_F(GpuNcclFailureTest, AKilledRankAtABarrierOverNcclTwoRanks) {
  run_nccl(RankProcesses{.size = 2, .ends = {{0, ExitStatus{-1, SIGKILL}}}}, kNever, [&](World& world) {
    const Communicator& group = world.communicator();
    warm_up(group);
    if (world.rank() == 0) raise(SIGKILL);
    try {
      for (;;) group.barrier();
    } catch (const CommError& error) {
      EXPECT_THAT(error.what(), HasSubstr("rank 0 died"));
      EXPECT_EQ(error.failed_rank(), 0);
    }
  });
}

// The whole process stands still. The operation has a timeout of its own.
TEST_F(GpuNcclFailureTest, AStoppedRankOverNcclTwoRanks) {
  run_nccl(RankProcesses{.size = 2, .stalled = 1}, kNever, [&](World& world) {
    const Communicator& group = world.communicator();
    warm_up(group);
    if (world.rank() == 1) raise(SIGSTOP);
    expect_ended_by(run_until_failure(group, device(), seconds(3)), 1, "timed out");
    expect_broken(group);
  });
}

// Its thread does something else, and the others wait for it, some longer than others.
TEST_F(GpuNcclFailureTest, AStalledRankOverNcclFourRanks) {
  run_nccl(RankProcesses{.size = 4, .stalled = 2}, seconds(5), [&](World& world) {
    const Communicator& group = world.communicator();
    warm_up(group);
    if (world.rank() == 2) {
      for (;;) ::pause();
    }
    expect_ended_by(run_until_failure(group, device()), 2, "did not take part");
    expect_broken(group);
  });
}

TEST_F(GpuNcclFailureTest, AMessageThatNobodyReceivesOverNcclTwoRanks) {
  run_nccl(RankProcesses{.size = 2, .stalled = 1}, seconds(3), [&](World& world) {
    const Communicator& group = world.communicator();
    warm_up(group);
    if (world.rank() == 1) {
      for (;;) ::pause();
    }
    const auto began = std::chrono::steady_clock::now();
    try {
      const at::Tensor tensor = torch::ones({1 << 22}, device());
      group.recv(tensor, 1).wait();
      tensor.sum().item<double>();
      group.barrier();
      ADD_FAILURE() << "nothing was thrown";
    } catch (const CommError& error) {
      EXPECT_THAT(error.what(), HasSubstr("recv timed out"));
      EXPECT_EQ(error.failed_rank(), 1);
    }
    EXPECT_LT(std::chrono::steady_clock::now() - began, kSoon);
  });
}

// A rank that ends with an exception of its own closes its group.
TEST_F(GpuNcclFailureTest, ARankThatLeavesOverNcclTwoRanks) {
  run_nccl(RankProcesses{.size = 2}, kNever, [&](World& world) {
    warm_up(world.communicator());
    if (world.rank() == 1) return;
    expect_ended_by(run_until_failure(world.communicator(), device()), 1, "left the job");
  });
}

// A launcher that looks for hangs sees who waits on the device, though its wait() has returned.
TEST_F(GpuNcclFailureTest, TheLauncherSeesWhoWaitsOverNcclTwoRanks) {
  test::run_rank_processes(sharing({.size = 2}), [&](const RankMap& map) {
    const base::ProgressWatch launcher;
    ::setenv("LOCKSTEP_PROGRESS_FD", std::to_string(launcher.fd()).c_str(), 1);
    const std::string gate = std::filesystem::path(map.rendezvous.path).parent_path() / "gate";
    const Communicator group = Communicator::connect(map, nccl_options(seconds(60)));
    if (map.rank == 0) {
      ASSERT_EQ(::mkfifo(gate.c_str(), 0600), 0);
    }
    warm_up(group);  // a first call may wait for the peer itself
    group.barrier();
    const at::Tensor tensor = torch::ones({1000}, device());
    if (map.rank == 1) std::ifstream(gate).get();  // until rank 0 opens it
    group.all_reduce(tensor).wait();
    if (map.rank == 0) {
      const auto seen = launcher.look();
      EXPECT_TRUE(seen.waits());
      EXPECT_EQ(seen.operation, "all_reduce");
      std::ofstream(gate) << "go";
    }
    EXPECT_EQ(tensor.sum().item<double>(), 2000);
    while (launcher.look().waits()) std::this_thread::yield();
  });
}

// NCCL alone would wait for it for ever.
TEST_F(GpuNcclFailureTest, ARankThatDiesWhileOthersConnectOverNcclTwoRanks) {
  const RankProcesses job{.size = 2, .ends = {{1, ExitStatus{-1, SIGKILL}}}};
  test::run_rank_processes(sharing(job), [&](const RankMap& map) {
    if (map.rank == 1) {
      const auto store = c10::make_intrusive<c10d::PrefixStore>("lockstep/0", open_store(map, seconds(60)));
      const base::JobToken secret(store->get_to_str("secret"));
      const auto lifeline = comm::Lifeline::join(*store, secret, map.rank, map.world_size, "", seconds(60));
      raise(SIGKILL);
    }
    const auto began = std::chrono::steady_clock::now();
    try {
      Communicator::connect(map, nccl_options(kNever));
      ADD_FAILURE() << "a rank that is dead has connected";
    } catch (const CommError& error) {
      EXPECT_THAT(error.what(), AllOf(HasSubstr("rank 1 died"), HasSubstr("connected")));
      EXPECT_EQ(error.failed_rank(), 1);
    }
    EXPECT_LT(std::chrono::steady_clock::now() - began, kSoon);
  });
}

}  // namespace
}  // namespace lockstep
