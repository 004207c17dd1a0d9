#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/error.h>

#include <latch>

#include "support/shm_rank.h"

namespace lockstep::test {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

TEST(ShmMessages, AnySizeBothWaysAtOnce) {
  for (bool shared : {false, true}) {
    run_shm_ranks(3, [&](ShmRank r) {
      r.shared = shared;
      const int to = (r.rank + 1) % r.size;
      const int from = (r.rank + r.size - 1) % r.size;
      for (int64_t numel : {0, 1, 1000, 70000, 2000000}) {
        auto out = r.new_tensor(torch::full({numel}, r.rank + 0.5F));
        auto in = torch::zeros({numel});
        auto sent = r.send(out, to, 3);
        r.recv(in, from, 3)->wait();
        sent->wait();
        EXPECT_TRUE(in.equal(torch::full({numel}, from + 0.5F))) << numel;
      }
    });
  }
}

TEST(ShmMessages, OfOneTagKeepTheirOrderAndTagsAreIndependent) {
  run_shm_ranks(2, [](const ShmRank& r) {
    constexpr int kCount = 50;  // more than there are posts
    if (r.rank == 0) {
      std::vector<c10::intrusive_ptr<c10d::Work>> works;
      for (int i = 0; i < kCount; ++i) {
        works.push_back(r.send(torch::full({1 + i}, i), 1, i % 2));
      }
      works.push_back(r.send(torch::full({1}, -1), 1, 9));
      for (auto& work : works) {
        work->wait();
      }
    } else {
      auto last = torch::zeros({1}, at::kLong);
      r.recv(last, 0, 9)->wait();  // behind all others
      EXPECT_EQ(last.item<int64_t>(), -1);
      for (int tag : {1, 0}) {
        for (int i = tag; i < kCount; i += 2) {
          auto tensor = torch::zeros({1 + i}, at::kLong);
          r.recv(tensor, 0, tag)->wait();
          EXPECT_TRUE(tensor.equal(torch::full({1 + i}, i)));
        }
      }
    }
  });
}

TEST(ShmMessages, ALaterOneMayCompleteFirst) {
  run_shm_ranks(2, [](const ShmRank& r) {
    auto early = torch::zeros({4});
    auto late = torch::full({4}, 7.0F);
    if (r.rank == 0) {
      auto first = r.recv(early, 1, 5);
      r.send(late, 1, 6)->wait();
      first->wait();
    } else {
      r.recv(early, 0, 6)->wait();
      r.send(late, 0, 5)->wait();
    }
    EXPECT_TRUE(early.equal(torch::full({4}, 7.0F)));
  });
}

// The second send takes the place of the first, whose message has been taken but whose wait() has
// not been called yet.
TEST(ShmMessages, AnEarlierSendDoesNotWaitForALaterOne) {
  std::latch first_taken(1);
  run_shm_ranks(
      2,
      [&](const ShmRank& r) {
        torch::Tensor first = torch::zeros({4}), second = torch::zeros({4}), answer = torch::zeros({4});
        if (r.rank == 0) {
          const auto early = r.send(torch::full({4}, 1.0F), 1, 1);
          first_taken.wait();
          const auto late = r.send(torch::full({4}, 2.0F), 1, 2);
          early->wait();
          r.recv(answer, 1, 3)->wait();
          late->wait();
          EXPECT_TRUE(answer.equal(torch::full({4}, 3.0F)));
        } else {
          r.recv(first, 0, 1)->wait();
          first_taken.count_down();
          r.send(torch::full({4}, 3.0F), 0, 3)->wait();
          r.recv(second, 0, 2)->wait();
          EXPECT_TRUE(first.equal(torch::full({4}, 1.0F)));
          EXPECT_TRUE(second.equal(torch::full({4}, 2.0F)));
        }
      },
      std::chrono::seconds(10));
}

TEST(ShmMessages, MixWithCollectivesAndGoToOneself) {
  run_shm_ranks(2, [](const ShmRank& r) {
    auto sum = torch::ones({100000});
    auto in = torch::zeros({10});
    auto reduced = r.all_reduce(sum);
    auto received = r.recv(in, r.rank, 0);
    r.send(torch::ones({10}), r.rank, 0)->wait();
    received->wait();
    reduced->wait();
    EXPECT_EQ(in.sum().item<float>(), 10);
    EXPECT_EQ(sum[99999].item<float>(), 2);
  });
}

// A model with more buckets than the region table has room for.
TEST(ShmMessages, FindAPlaceBesideAnyNumberOfSharedTensors) {
  run_shm_ranks(2, [](ShmRank r) {
    r.shared = true;
    std::vector<at::Tensor> buckets;
    for (int i = 0; i < 300; ++i) {
      buckets.push_back(r.new_tensor(torch::full({2000}, 1.0F)));
    }
    // All posts of the peer and more, of sizes that no earlier block has.
    for (int64_t numel : {10, 3000, 20000}) {
      constexpr int kCount = 40;
      std::vector<c10::intrusive_ptr<c10d::Work>> works;
      std::vector<at::Tensor> received;
      for (int i = 0; i < kCount; ++i) {
        works.push_back(r.send(torch::full({numel}, static_cast<float>(r.rank + i)), 1 - r.rank, 4));
        received.push_back(torch::zeros({numel}));
        works.push_back(r.recv(received.back(), 1 - r.rank, 4));
      }
      for (auto& work : works) {
        work->wait();
      }
      for (int i = 0; i < kCount; ++i) {
        EXPECT_TRUE(received[i].equal(torch::full({numel}, static_cast<float>(1 - r.rank + i)))) << numel;
      }
    }
    r.all_reduce(buckets.front())->wait();
    r.all_reduce(buckets.back())->wait();
    EXPECT_TRUE(buckets.front().equal(torch::full({2000}, 2.0F)));
    EXPECT_TRUE(buckets.back().equal(torch::full({2000}, 2.0F)));
  });
}

TEST(ShmMessages, ThatDoNotFitAreAnErrorOnBothSides) {
  const auto errors = try_ranks(2, [](int rank, c10::intrusive_ptr<c10d::Store> store) {
    const ShmRank r{rank, 2, comm::make_shm_backend(store, rank, 2, std::chrono::seconds(60))};
    (rank == 0 ? r.send(torch::zeros({4}), 1, 2) : r.recv(torch::zeros({3}), 0, 2))->wait();
  });
  for (const auto& error : errors) {
    EXPECT_THAT(
        [&] { std::rethrow_exception(error); },
        ThrowsMessage<CommError>(HasSubstr("rank 0 sent 16 bytes with tag 2, rank 1 receives 12 bytes")));
  }
}

}  // namespace
}  // namespace lockstep::test
