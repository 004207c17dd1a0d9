// The store of a job whose ranks have a secret, with ranks as threads: it does what c10d's does,
// for the job's ranks and for nobody else.

#include "comm/job_store.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/communicator.h>
#include <lockstep/error.h>
#include <netinet/in.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <torch/torch.h>
#include <unistd.h>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <future>
#include <thread>

#include "base/job_token.h"
#include "base/network.h"
#include "comm/job_store_server.h"
#include "comm/secure_connection.h"
#include "support/rank_threads.h"

namespace lockstep::comm {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;
using StorePtr = c10::intrusive_ptr<c10d::Store>;
using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds kLimit{30};

// A job of threads, with its secret in a descriptor as the launcher hands it over.
class StoreJob {
 public:
  explicit StoreJob(int num_ranks, const std::string& key = base::make_token())
      : size(num_ranks), key_fd_(::memfd_create("lockstep-key", 0)) {
    EXPECT_EQ(::write(key_fd_.get(), key.data(), key.size()), static_cast<ssize_t>(key.size()));
  }

  RankMap map(int rank) {
    RankMap map;
    map.rank = rank;
    map.world_size = size;
    map.host = "localhost";
    map.rendezvous.kind = Rendezvous::Kind::kTcp;
    map.rendezvous.address = "127.0.0.1";
    map.rendezvous.port = listener_.port;
    if (rank == 0) map.rendezvous.listen_fd = listener_.fd.release();
    map.rendezvous.secret = Rendezvous::Secret::kInherited;
    map.rendezvous.key_fd = key_fd_.get();
    return map;
  }

  uint16_t port() const { return listener_.port; }

  // Runs the ranks in threads; `body` has each one's store.
  void run(const std::function<void(int rank, const StorePtr& store)>& body) {
    std::vector<RankMap> maps;
    for (int rank = 0; rank < size; ++rank) maps.push_back(map(rank));
    test::run_ranks(size, [&](int rank, const StorePtr&) {
      body(rank, open_job_store(maps[static_cast<size_t>(rank)], kLimit));
    });
  }

  const int size;

 private:
  base::ListenSocket listener_ = base::listen_on_free_port("127.0.0.1");
  const base::UniqueFd key_fd_;
};

base::UniqueFd connect_raw(uint16_t port) {
  base::UniqueFd fd(::socket(AF_INET, SOCK_STREAM, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port);
  EXPECT_EQ(::connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  return fd;
}

// All that comes until the peer closes.
std::string read_to_end(int fd) {
  std::string text;
  char bytes[4096];
  for (ssize_t count; (count = ::recv(fd, bytes, sizeof bytes, 0)) > 0;)
    text.append(bytes, static_cast<size_t>(count));
  return text;
}

std::string text_of(const std::vector<uint8_t>& bytes) { return {bytes.begin(), bytes.end()}; }
std::vector<uint8_t> bytes_of(const std::string& text) { return {text.begin(), text.end()}; }

// What the calls of a store answer, one line each.
std::vector<std::string> answers_of(c10d::Store& store) {
  std::vector<std::string> lines;
  const auto say = [&](const std::string& name, const std::string& value) {
    lines.push_back(name + ": " + value);
  };
  store.set("a", "one");
  say("get", store.get_to_str("a"));
  store.set("a", "two");
  say("set again", store.get_to_str("a"));
  store.set("empty", "");
  say("empty", store.get_to_str("empty"));
  std::string all_bytes(256, '\0');
  for (int i = 0; i < 256; ++i) all_bytes[static_cast<size_t>(i)] = static_cast<char>(i);
  store.set("bytes", all_bytes);
  say("bytes", std::to_string(store.get_to_str("bytes") == all_bytes));
  say("add", std::to_string(store.add("n", 5)));
  say("add less", std::to_string(store.add("n", -7)));
  say("added", store.get_to_str("n"));
  say("add nothing", std::to_string(store.add("m", 0)));
  say("check", std::to_string(store.check({"a", "n"})) + std::to_string(store.check({"a", "nobody"})));
  say("compare new", store.compareSet("c", "", "first"));
  say("compare other", store.compareSet("c", "wrong", "second"));
  say("compare same", store.compareSet("c", "first", "third"));
  say("compare absent", store.compareSet("d", "something", "new"));
  say("absent after that", std::to_string(store.check({"d"})));
  say("delete", std::to_string(store.deleteKey("c")) + std::to_string(store.deleteKey("c")));
  store.append("log", bytes_of("x"));
  store.append("log", bytes_of("yz"));
  say("append", store.get_to_str("log"));
  store.multiSet({"p", "q"}, {bytes_of("1"), bytes_of("2")});
  for (const auto& value : store.multiGet({"q", "p"})) say("multi", text_of(value));
  store.wait({"a", "p"});
  store.wait({"a"}, std::chrono::milliseconds(1));
  const auto fails = [&](const std::function<void()>& call) {
    try {
      call();
      return "no";
    } catch (const c10::DistStoreError& error) {
      return std::string(error.what()).find("timeout") != std::string::npos ? "timeout" : "otherwise";
    }
  };
  say("wait for nobody", fails([&] { store.wait({"a", "nobody"}, std::chrono::milliseconds(20)); }));
  say("extended", std::to_string(store.hasExtendedApi()));
  return lines;
}

// Rank 0 is the last to leave.
void leave_together(const StorePtr& store, int rank, int size) {
  store->add("leaving", 1);
  while (rank == 0 && store->add("leaving", 0) < size) std::this_thread::yield();
}

TEST(JobStoreTest, AnswersAsTheStoreOfC10d) {
  c10d::TCPStoreOptions options;
  options.isServer = true;
  options.numWorkers = 1;
  const auto theirs = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
  StoreJob job(2);
  job.run([&](int rank, const StorePtr& ours) {
    if (rank == 1) EXPECT_EQ(answers_of(*ours), answers_of(*theirs));
    leave_together(ours, rank, 2);
  });
}

TEST(JobStoreTest, WaitsInOneThreadWhileAnotherCalls) {
  StoreJob job(2);
  job.run([&](int rank, const StorePtr& store) {
    auto waiting =
        std::async(std::launch::async, [&] { return store->get_to_str(fmt::format("from {}", 1 - rank)); });
    // The same object, while its other thread waits for what this one's peer will say.
    EXPECT_FALSE(store->check({"nobody"}));
    const StorePtr clone = store->clone();
    clone->set(fmt::format("from {}", rank), fmt::format("hello of {}", rank));
    EXPECT_EQ(waiting.get(), fmt::format("hello of {}", 1 - rank));
    leave_together(store, rank, 2);
  });
}

TEST(JobStoreTest, CarriesLargeValues) {
  StoreJob job(3);
  const std::string large(20 << 20, 'x');
  job.run([&](int rank, const StorePtr& store) {
    if (rank == 1) store->set("large", large);
    EXPECT_EQ(store->get_to_str("large"), large);
    leave_together(store, rank, 3);
  });
}

TEST(JobStoreTest, NamesTheRanksThatDoNotCome) {
  StoreJob job(3);
  const RankMap host = job.map(0), second = job.map(2);
  auto joined = std::async(std::launch::async, [&] {
    try {
      const auto store = open_job_store(second, kLimit);
      store->wait({"never"}, kLimit);
    } catch (const c10::Error&) {
      // The host gave up.
    }
  });
  EXPECT_THAT([&] { open_job_store(host, std::chrono::seconds(1)); },
              ThrowsMessage<CommError>(
                  AllOf(HasSubstr("rank 0 of 3 could not meet"), HasSubstr("rank 1 did not come"))));
}

TEST(JobStoreTest, SaysThatTheHostIsGone) {
  StoreJob job(2);
  const RankMap host = job.map(0), other = job.map(1);
  auto hosted = std::async(std::launch::async, [&] { return open_job_store(host, kLimit); });
  const StorePtr store = open_job_store(other, kLimit);
  hosted.get().reset();
  EXPECT_THAT([&] { store->set("a", "b"); },
              ThrowsMessage<c10::DistNetworkError>(HasSubstr("rank 0 is gone")));
}

TEST(JobStoreTest, TakesNoOneWithAnotherSecret) {
  StoreJob job(2), other(2);
  RankMap host = job.map(0), stranger = job.map(1);
  stranger.rendezvous.key_fd = other.map(1).rendezvous.key_fd;
  auto hosted = std::async(std::launch::async, [&] {
    EXPECT_THAT([&] { open_job_store(host, std::chrono::seconds(2)); },
                ThrowsMessage<CommError>(HasSubstr("rank 1 did not come")));
  });
  EXPECT_THAT([&] { open_job_store(stranger, std::chrono::seconds(1)); },
              ThrowsMessage<CommError>(HasSubstr("proved that it belongs to this job")));
}

TEST(JobStoreTest, AnInheritedSecretThatIsNoneIsToldAsThat) {
  StoreJob job(2);
  RankMap map = job.map(1);
  // Closed, and by now the number of another file.
  const base::UniqueFd other(::memfd_create("something else", 0));
  for (const int fd : {1000, other.get()}) {
    map.rendezvous.key_fd = fd;
    EXPECT_THAT([&] { open_job_store(map, kLimit); },
                ThrowsMessage<ConfigError>(HasSubstr("LOCKSTEP_KEY_FD")));
  }
}

TEST(JobStoreTest, ADescriptorThatDoesNotListenIsToldAsThat) {
  StoreJob job(2);
  RankMap map = job.map(0);
  map.rendezvous.listen_fd = map.rendezvous.key_fd;
  EXPECT_THAT([&] { open_job_store(map, kLimit); }, ThrowsMessage<CommError>(HasSubstr("LOCKSTEP_STORE_FD")));
}

// While a job runs: an unauthenticated client of c10d, bytes that are nothing, connections that say
// nothing, half a proof, a proof that was heard before, and one that was made for another purpose.
TEST(JobStoreTest, GivesStrangersNothingAndTakesNothing) {
  const std::string key = base::make_token();
  StoreJob job(2, key);
  job.run([&](int rank, const StorePtr& store) {
    store->set("value", "right");
    if (rank == 1) {
      c10d::TCPStoreOptions client;
      client.port = job.port();
      client.timeout = std::chrono::milliseconds(500);
      EXPECT_ANY_THROW(static_cast<void>(c10::make_intrusive<c10d::TCPStore>("127.0.0.1", client)));

      constexpr size_t kGreeting = 8 + sizeof(base::Nonce);
      std::vector<base::UniqueFd> silent;
      for (int i = 0; i < 400; ++i) silent.push_back(connect_raw(job.port()));
      for (const std::string& garbage :
           {std::string("GET / HTTP/1.1\r\n\r\n"), std::string(200, '\xff'), std::string(200, '\0'),
            std::string("LSRANKS\1") + std::string(200, 'a'),
            std::string("LSRANKS\2") + std::string(200, 'a')}) {
        const base::UniqueFd fd = connect_raw(job.port());
        ASSERT_GT(::send(fd.get(), garbage.data(), garbage.size(), MSG_NOSIGNAL), 0);
        ::shutdown(fd.get(), SHUT_WR);
        EXPECT_LE(read_to_end(fd.get()).size(), kGreeting) << "nothing but a greeting, which is random";
      }
      const base::JobToken token(key);
      EXPECT_THROW(SecureClient(connect_raw(job.port()), token, Purpose::kLifeline, 1, Clock::now() + kLimit),
                   NotOfThisJob);
      EXPECT_THROW(SecureClient(connect_raw(job.port()), token, Purpose::kStore, 2, Clock::now() + kLimit),
                   NotOfThisJob);
      EXPECT_THROW(SecureClient(connect_raw(job.port()), base::JobToken("guess"), Purpose::kStore, 1,
                                Clock::now() + kLimit),
                   NotOfThisJob);
    }
    EXPECT_EQ(store->get_to_str("value"), "right");
    leave_together(store, rank, 2);
  });
}

// Sends on what both sides say, and keeps it.
class Wiretap {
 public:
  explicit Wiretap(uint16_t target) : target_(target), thread_([this] { relay(); }) {}
  ~Wiretap() { thread_.join(); }
  uint16_t port() const { return listener_.port; }
  const std::string& said_by_client() const { return said_by_client_; }

 private:
  void relay() {
    const base::UniqueFd client(::accept(listener_.fd.get(), nullptr, nullptr)),
        server = connect_raw(target_);
    std::thread answers([&] {
      char bytes[4096];
      for (ssize_t count; (count = ::recv(server.get(), bytes, sizeof bytes, 0)) > 0;)
        ::send(client.get(), bytes, static_cast<size_t>(count), MSG_NOSIGNAL);
      ::shutdown(client.get(), SHUT_RDWR);
    });
    char bytes[4096];
    for (ssize_t count; (count = ::recv(client.get(), bytes, sizeof bytes, 0)) > 0;) {
      said_by_client_.append(bytes, static_cast<size_t>(count));
      ::send(server.get(), bytes, static_cast<size_t>(count), MSG_NOSIGNAL);
    }
    ::shutdown(server.get(), SHUT_RDWR);
    answers.join();
  }

  const uint16_t target_;
  base::ListenSocket listener_ = base::listen_on_free_port("127.0.0.1");
  std::string said_by_client_;
  std::thread thread_;
};

TEST(JobStoreTest, WhatWasHeardOnceIsWorthNothing) {
  const std::string key = base::make_token();
  StoreJob job(2, key);
  job.run([&](int rank, const StorePtr& store) {
    if (rank == 1) {
      std::string heard;
      {
        Wiretap tap(job.port());
        {
          SecureClient client(connect_raw(tap.port()), base::JobToken(key), Purpose::kStore, 1,
                              Clock::now() + kLimit);
          client.send(
              MessageWriter(static_cast<uint8_t>(StoreCall::kAdd)).text("count of heard").number(1).bytes(),
              Clock::now() + kLimit);
          ASSERT_TRUE(client.receive(Clock::now() + kLimit));
          // The connection ends here, and with it the tap.
        }
        while (tap.said_by_client().empty()) std::this_thread::yield();
        heard = tap.said_by_client();
      }
      EXPECT_EQ(heard.find("count of heard"), std::string::npos) << "said in the clear";
      for (int i = 0; i < 3; ++i) {
        const base::UniqueFd replay = connect_raw(job.port());
        ASSERT_GT(::send(replay.get(), heard.data(), heard.size(), MSG_NOSIGNAL), 0);
        ::shutdown(replay.get(), SHUT_WR);
        read_to_end(replay.get());
      }
      EXPECT_EQ(store->add("count of heard", 0), 1);
    }
    leave_together(store, rank, 2);
  });
}

TEST(ConnectTest, OverAStoreWithASecretAndEachBackend) {
  for (const char* backend : {"auto", "shm", "gloo"}) {
    StoreJob job(3);
    std::vector<RankMap> maps{job.map(0), job.map(1), job.map(2)};
    test::run_ranks(3, [&](int rank, const StorePtr&) {
      CommunicatorOptions options;
      options.backend = backend;
      const Communicator group = Communicator::connect(maps[static_cast<size_t>(rank)], options);
      at::Tensor tensor = torch::full({10}, rank + 1.0);
      group.all_reduce(tensor).wait();
      EXPECT_TRUE(torch::equal(tensor, torch::full({10}, 6.0))) << backend;
    });
  }
}

}  // namespace
}  // namespace lockstep::comm
