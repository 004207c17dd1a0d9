// Meeting at a store, and Communicator::connect, with ranks as threads.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/c10d.h>
#include <lockstep/communicator.h>
#include <lockstep/error.h>
#include <lockstep/rank_map.h>
#include <torch/torch.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "base/network.h"
#include "support/rank_threads.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

constexpr std::chrono::seconds kBound{30};

RankMap tcp_map(int rank, int size, uint16_t port, int listen_fd = -1) {
  RankMap map;
  map.rank = rank;
  map.world_size = size;
  map.host = "localhost";
  map.rendezvous.kind = Rendezvous::Kind::kTcp;
  map.rendezvous.address = "127.0.0.1";
  map.rendezvous.port = port;
  map.rendezvous.listen_fd = rank == 0 ? listen_fd : -1;
  return map;
}

RankMap file_map(int rank, int size, const std::string& path) {
  RankMap map = tcp_map(rank, size, 0);
  map.rendezvous = {};
  map.rendezvous.kind = Rendezvous::Kind::kFile;
  map.rendezvous.path = path;
  return map;
}

std::string fresh_file(const std::string& name) {
  const auto path = std::filesystem::temp_directory_path() / (name + std::to_string(getpid()));
  std::filesystem::remove(path);
  return path;
}

void check_sum(const RankMap& map, const CommunicatorOptions& options) {
  const Communicator group = Communicator::connect(map, options);
  at::Tensor tensor = torch::full({10}, group.rank() + 1.0);
  group.all_reduce(tensor).wait();
  EXPECT_TRUE(torch::equal(tensor, torch::full({10}, group.size() * (group.size() + 1) / 2.0)));
}

TEST(ConnectTest, OverTcpWithAnInheritedSocket) {
  base::ListenSocket listener = base::listen_on_free_port("127.0.0.1");
  const int fd = listener.fd.release();
  test::run_ranks(3, [&](int rank, const auto&) { check_sum(tcp_map(rank, 3, listener.port, fd), {}); });
}

TEST(ConnectTest, OverAFileAndEachBackend) {
  for (const char* backend : {"auto", "shm", "gloo"}) {
    const std::string path = fresh_file("lockstep_connect_");
    CommunicatorOptions options;
    options.backend = backend;
    test::run_ranks(2, [&](int rank, const auto&) { check_sum(file_map(rank, 2, path), options); });
    std::filesystem::remove(path);
  }
}

TEST(ConnectTest, OneRankMeetsNobody) {
  for (const char* backend : {"auto", "gloo", "shm", "fake"}) {
    CommunicatorOptions options;
    options.backend = backend;
    check_sum(RankMap{}, options);
  }
}

TEST(ConnectTest, AFakeWorldNeedsNoRendezvous) {
  CommunicatorOptions options;
  options.backend = "fake";
  RankMap map;
  map.rank = 511;
  map.world_size = 512;
  EXPECT_EQ(Communicator::connect(map, options).size(), 512);
}

TEST(StoreTest, NoRendezvousIsAnError) {
  RankMap map;
  map.world_size = 2;
  EXPECT_THAT([&] { open_store(map, kBound); },
              ThrowsMessage<ConfigError>(
                  AllOf(HasSubstr("[store] a job of 2 ranks has no rendezvous"), HasSubstr("MASTER_ADDR"))));
}

TEST(StoreTest, AServiceThatIsNoStoreIsToldApart) {
  const base::ListenSocket silent = base::listen_on_free_port("127.0.0.1");
  EXPECT_THAT([&] { open_store(tcp_map(1, 2, silent.port), std::chrono::milliseconds(200)); },
              ThrowsMessage<CommError>(HasSubstr("does not answer as a store does")));
}

TEST(StoreTest, AClientThatFindsNobodySaysWhoShouldBeThere) {
  const uint16_t port = base::listen_on_free_port("127.0.0.1").port;  // closed again
  RankMap map = tcp_map(1, 2, port);
  EXPECT_THAT(
      [&] { open_store(map, std::chrono::seconds(1)); },
      ThrowsMessage<CommError>(AllOf(HasSubstr("[store] rank 1 of 2 could not meet the others at address "
                                               "'127.0.0.1' port " +
                                               std::to_string(port)),
                                     HasSubstr("rank 0 hosts it"))));
  map.rendezvous.agent_hosts_store = true;
  EXPECT_THAT([&] { open_store(map, std::chrono::seconds(1)); },
              ThrowsMessage<CommError>(HasSubstr("the launcher's agent hosts it")));
}

TEST(StoreTest, AHostThatIsNotKnownIsNamedWithWhatToChange) {
  RankMap map = tcp_map(1, 4, 29514);
  map.rendezvous.address = "no..host";  // no name at all, so that no server is asked
  const auto refused = [&](Launcher launcher, const char* remedy) {
    map.launcher = launcher;
    EXPECT_THAT([&] { open_store(map, std::chrono::milliseconds(10)); },
                ThrowsMessage<ConfigError>(AllOf(
                    HasSubstr("[store] rank 1 of 4 is to meet the others at host 'no..host' port 29514, "
                              "which localhost does not know (Name or service not known)"),
                    HasSubstr(remedy))));
  };
  refused(Launcher::kLockstep, "set --local-addr of lockstep run on node 0, or --master-addr, to a name");
  refused(Launcher::kTorchrun,
          "set MASTER_ADDR, torchrun's --master-addr or its --local-addr on node 0, to a name");
  refused(Launcher::kSlurm, "set MASTER_ADDR to a name or an address of rank 0's node");
  refused(Launcher::kMpi, "set MASTER_ADDR to a name");
  refused(Launcher::kExplicit, "set MASTER_ADDR, or the host of init_method, to a name");
}

// One for each attempt to connect; ranks under Slurm printed them until the time limit.
TEST(StoreTest, C10dWarnsOnlyWhenItIsAskedTo) {
  const auto said = [] {
    testing::internal::CaptureStderr();
    const uint16_t port = base::listen_on_free_port("127.0.0.1").port;  // closed again
    EXPECT_THROW(open_store(tcp_map(1, 2, port), std::chrono::seconds(1)), CommError);
    return testing::internal::GetCapturedStderr();
  };
  ASSERT_EQ(std::getenv("TORCH_CPP_LOG_LEVEL"), nullptr);
  EXPECT_EQ(said(), "");
  ::setenv("TORCH_CPP_LOG_LEVEL", "WARNING", 1);
  EXPECT_THAT(said(), HasSubstr("[c10d]"));
  ::unsetenv("TORCH_CPP_LOG_LEVEL");
}

TEST(StoreTest, AHostThatNobodyJoinsGivesUp) {
  base::ListenSocket listener = base::listen_on_free_port("127.0.0.1");
  const RankMap map = tcp_map(0, 2, listener.port, listener.fd.release());
  EXPECT_THAT([&] { open_store(map, std::chrono::seconds(1)); },
              ThrowsMessage<CommError>(HasSubstr("this rank, 0, hosts it")));
}

TEST(StoreTest, AFileOfAnEarlierJobIsRefused) {
  const std::string path = fresh_file("lockstep_stale_");
  auto first = open_store(file_map(0, 2, path), kBound);
  auto second = open_store(file_map(1, 2, path), kBound);
  EXPECT_THAT(
      [&] { open_store(file_map(0, 2, path), kBound); },
      ThrowsMessage<ConfigError>(AllOf(HasSubstr("used by another job, remove it"), HasSubstr(path))));
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace lockstep
