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

#include "comm/lifeline_wire.h"

namespace lockstep::comm {
namespace {

constexpr std::chrono::seconds kBound{20};
constexpr char kLoopback[] = "127.0.0.1";

// A store with rank 0's lifeline, and what it published there.
struct Job {
  explicit Job(int num_ranks) : size(num_ranks) {
    server = Lifeline::join(*store, 0, size, kLoopback, kBound);
    const auto value = store->get("lifeline");
    std::copy_n(value.begin(), kNonceBytes, nonce.begin());
    port = static_cast<uint16_t>(std::stoi(std::string(value.begin() + kNonceBytes, value.end())));
  }

  std::shared_ptr<Lifeline> join(int rank) { return Lifeline::join(*store, rank, size, kLoopback, kBound); }

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
  base::UniqueFd connect_mortal(int rank) const {
    base::UniqueFd fd = connect_raw();
    const Hello hello = encode_hello(nonce, rank);
    EXPECT_TRUE(send_whole(fd.get(), hello.data(), hello.size()));
    NoticeBytes welcome;
    EXPECT_EQ(recv(fd.get(), welcome.data(), welcome.size(), MSG_WAITALL),
              static_cast<ssize_t>(welcome.size()));
    return fd;
  }

  int size;
  c10::intrusive_ptr<c10d::HashStore> store = c10::make_intrusive<c10d::HashStore>();
  std::shared_ptr<Lifeline> server;
  Nonce nonce{};
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
  base::UniqueFd mortal = job.connect_mortal(3);
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
  Job job(4);
  auto watcher = job.join(1);
  base::UniqueFd third = job.connect_mortal(3);
  base::UniqueFd second = job.connect_mortal(2);
  third.reset();
  ASSERT_TRUE(watcher->first_departure(kBound).has_value());
  second.reset();
  // Rank 0 tells of rank 2 before it lets rank 2 in again, so that all were told.
  base::UniqueFd again;
  while (!again) {
    base::UniqueFd fd = job.connect_raw();
    const Hello hello = encode_hello(job.nonce, 2);
    send_whole(fd.get(), hello.data(), hello.size());
    NoticeBytes welcome;
    if (recv(fd.get(), welcome.data(), welcome.size(), MSG_WAITALL) == static_cast<ssize_t>(welcome.size())) {
      again = std::move(fd);
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

TEST(LifelineTest, StrangersLoseTheirConnectionAndNothingElse) {
  Job job(2);
  auto client = job.join(1);
  Nonce wrong = job.nonce;
  wrong[0] ^= 1;
  const std::string http = "GET / HTTP/1.1\r\nHost: rank0\r\nAccept: */*\r\n\r\n";
  const auto offend = [&](const uint8_t* data, size_t size) {
    base::UniqueFd fd = job.connect_raw();
    EXPECT_TRUE(send_whole(fd.get(), data, size));
    EXPECT_TRUE(is_closed_by_peer(fd.get()));
  };
  offend(reinterpret_cast<const uint8_t*>(http.data()), http.size());
  for (const auto& [nonce, rank] :
       {std::pair(wrong, 1), {job.nonce, 1}, {job.nonce, 0}, {job.nonce, 2}, {job.nonce, -1}}) {
    const Hello hello = encode_hello(nonce, rank);
    offend(hello.data(), hello.size());
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
