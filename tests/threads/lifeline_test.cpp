#include "comm/lifeline.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/error.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <atomic>
#include <future>
#include <thread>

#include "comm/secure_connection.h"

namespace lockstep::comm {
namespace {

constexpr std::chrono::seconds kBound{20};
constexpr char kLoopback[] = "127.0.0.1";

// A store with rank 0's lifeline, and what it published there.
struct Job {
  explicit Job(int num_ranks) : size(num_ranks) {
    server = Lifeline::join(*store, token, 0, size, kLoopback, kBound);
    port = static_cast<uint16_t>(std::stoi(store->get_to_str("lifeline")));
  }

  std::shared_ptr<Lifeline> join(int rank) {
    return Lifeline::join(*store, token, rank, size, kLoopback, kBound);
  }

  base::UniqueFd connect_raw() const {
    base::UniqueFd fd(socket(AF_INET, SOCK_STREAM, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(port);
    EXPECT_EQ(connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    return fd;
  }

  // A rank whose process can be made to die: its connection closes without goodbye.
  std::unique_ptr<SecureClient> connect_mortal(int rank) const {
    return std::make_unique<SecureClient>(connect_raw(), token, Purpose::kLifeline, rank,
                                          std::chrono::steady_clock::now() + kBound);
  }

  int size;
  c10::intrusive_ptr<c10d::HashStore> store = c10::make_intrusive<c10d::HashStore>();
  const base::JobToken token{"secret of the test"};
  std::shared_ptr<Lifeline> server;
  uint16_t port = 0;
};

// The end of the peer's stream, whatever it sent before.
bool is_closed_by_peer(int fd) {
  char bytes[64];
  for (;;) {
    const ssize_t count = recv(fd, bytes, sizeof(bytes), 0);
    if (count <= 0) {
      return count == 0 || errno == ECONNRESET;
    }
  }
}

TEST(LifelineTest, ADeathIsToldToAll) {
  Job job(4);
  auto first = job.join(1);
  auto second = job.join(2);
  auto mortal = job.connect_mortal(3);
  std::promise<int> told;
  second->on_death([&](int rank) { told.set_value(rank); });
  mortal.reset();
  for (const auto& lifeline : {job.server, first, second}) {
    const auto departure = lifeline->first_departure(kBound);
    ASSERT_TRUE(departure.has_value());
    EXPECT_EQ(departure->rank, 3);
    EXPECT_TRUE(departure->died);
  }
  EXPECT_EQ(told.get_future().get(), 3);
  std::atomic<int> late = -1;
  first->on_death([&](int rank) { late = rank; });
  EXPECT_EQ(late, 3) << "who asks after the death is told at once";
}

TEST(LifelineTest, TheFirstDeathStaysTheFirst) {
  Job job(5);  // rank 4 never comes, so that the port stays open
  auto watcher = job.join(1);
  auto third = job.connect_mortal(3);
  auto second = job.connect_mortal(2);
  third.reset();
  ASSERT_TRUE(watcher->first_departure(kBound).has_value());
  second.reset();
  // Rank 0 tells of rank 2 before it lets rank 2 in again, so that all were told.
  for (bool is_in = false; !is_in;) {
    try {
      is_in = job.connect_mortal(2)->receive(std::chrono::steady_clock::now() + kBound).has_value();
    } catch (const ConnectionError&) {
      // It still counts as connected.
    }
  }
  EXPECT_EQ(watcher->first_departure(kBound)->rank, 3);
  EXPECT_EQ(job.server->first_departure(kBound)->rank, 3);
}

TEST(LifelineTest, AGoodbyeIsNoDeath) {
  Job job(3);
  auto stays = job.join(2);
  std::atomic<bool> called = false;
  const auto subscription = stays->on_death([&](int) { called = true; });
  job.join(1).reset();
  const auto departure = stays->first_departure(kBound);
  ASSERT_TRUE(departure.has_value());
  EXPECT_EQ(departure->rank, 1);
  EXPECT_FALSE(departure->died);
  job.server.reset();
  EXPECT_FALSE(stays->first_departure(kBound)->died) << "rank 0 said goodbye too";
  stays->forget(subscription);
  EXPECT_FALSE(called);
}

TEST(LifelineTest, NobodyGoneIsNobody) {
  Job job(2);
  auto client = job.join(1);
  EXPECT_FALSE(client->first_departure(std::chrono::milliseconds(1)).has_value());
}

TEST(LifelineTest, WhoComesLateLearnsOfEarlierDeaths) {
  Job job(3);
  job.connect_mortal(1).reset();
  ASSERT_TRUE(job.server->first_departure(kBound).has_value());
  auto late = job.join(2);
  EXPECT_EQ(late->first_departure(kBound)->rank, 1);
}

TEST(LifelineTest, NoPortIsOpenOnceAllHaveCome) {
  Job job(3);
  auto first = job.join(1), second = job.join(2);
  // Rank 0 closes it in the same round in which it lets the last rank in.
  base::UniqueFd fd(socket(AF_INET, SOCK_STREAM, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(job.port);
  while (connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0) {
    fd.reset(socket(AF_INET, SOCK_STREAM, 0));
  }
  EXPECT_EQ(errno, ECONNREFUSED);
}

TEST(LifelineTest, StrangersLoseTheirConnectionAndNothingElse) {
  Job job(3);
  auto client = job.join(1);
  for (const std::string& garbage : {std::string("GET / HTTP/1.1\r\nHost: rank0\r\nAccept: */*\r\n\r\n"),
                                     std::string("LSRANKS\1") + std::string(100, 'x')}) {
    const base::UniqueFd fd = job.connect_raw();
    ASSERT_GT(send(fd.get(), garbage.data(), garbage.size(), MSG_NOSIGNAL), 0);
    shutdown(fd.get(), SHUT_WR);
    EXPECT_TRUE(is_closed_by_peer(fd.get()));
  }
  const auto deadline = std::chrono::steady_clock::now() + kBound;
  const base::JobToken wrong("another secret");
  EXPECT_THROW(SecureClient(job.connect_raw(), wrong, Purpose::kLifeline, 2, deadline), NotOfThisJob);
  EXPECT_THROW(SecureClient(job.connect_raw(), job.token, Purpose::kStore, 2, deadline), NotOfThisJob);
  EXPECT_THROW(SecureClient(job.connect_raw(), job.token, Purpose::kLifeline, 3, deadline), NotOfThisJob);
  for (const int taken : {0, 1}) {
    SecureClient second(job.connect_raw(), job.token, Purpose::kLifeline, taken, deadline);
    EXPECT_THROW(second.receive(deadline), ConnectionError) << "rank " << taken << " is there already";
  }
  std::vector<base::UniqueFd> silent;
  for (int i = 0; i < 200; ++i) {
    silent.push_back(job.connect_raw());
  }
  EXPECT_FALSE(client->first_departure(std::chrono::milliseconds(1)).has_value());
  client.reset();
  const auto departure = job.server->first_departure(kBound);
  ASSERT_TRUE(departure.has_value()) << "the server still serves";
  EXPECT_FALSE(departure->died);
}

}  // namespace
}  // namespace lockstep::comm
