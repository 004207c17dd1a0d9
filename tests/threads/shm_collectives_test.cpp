#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/error.h>
#include <sys/stat.h>

#include <barrier>
#include <filesystem>

#include "support/shm_rank.h"

namespace lockstep::test {
namespace {

// Sizes in elements around every border: inline payload, one-shot, piece, round.
const std::vector<int64_t> kSizes = {0, 1, 7, 1023, 1024, 1025, 8192, 8193, 20011, 131072, 131073, 300007};

// What rank r contributes; small integers, so that sums are exact.
at::Tensor values_of(int rank, int64_t numel) {
  static const at::Tensor pattern = ((torch::arange(3'000'000) * 7) % 31 - 15).to(at::kFloat);
  return pattern.narrow(0, rank * 13, numel).clone();
}

at::Tensor sum_of_ranks(int size, int64_t numel) {
  auto sum = torch::zeros({numel});
  for (int rank = 0; rank < size; ++rank) {
    sum += values_of(rank, numel);
  }
  return sum;
}

// World size, and whether tensors lie in the group's memory.
class ShmCollectives : public testing::TestWithParam<std::tuple<int, bool>> {
 protected:
  int size() const { return std::get<0>(GetParam()); }

  template <typename Function>
  void run(Function function) {
    run_shm_ranks(size(), [&](ShmRank rank) {
      rank.shared = std::get<1>(GetParam());
      function(rank);
    });
  }
};

TEST_P(ShmCollectives, AllReduceSums) {
  run([](const ShmRank& r) {
    for (int64_t numel : kSizes) {
      auto tensor = r.new_tensor(values_of(r.rank, numel));
      r.all_reduce(tensor)->wait();
      EXPECT_TRUE(tensor.equal(sum_of_ranks(r.size, numel))) << numel;
    }
  });
}

TEST_P(ShmCollectives, BroadcastFromEveryRoot) {
  run([](const ShmRank& r) {
    for (int64_t numel : kSizes) {
      for (int root = 0; root < r.size; ++root) {
        auto tensor = r.new_tensor(values_of(r.rank, numel));
        r.broadcast(tensor, root)->wait();
        EXPECT_TRUE(tensor.equal(values_of(root, numel))) << numel;
        tensor.fill_(-1);  // a root whose peers still read would spoil them
      }
    }
  });
}

TEST_P(ShmCollectives, ReduceToEveryRoot) {
  run([](const ShmRank& r) {
    for (int64_t numel : kSizes) {
      const int root = static_cast<int>(numel) % r.size;
      auto tensor = r.new_tensor(values_of(r.rank, numel));
      std::vector<at::Tensor> tensors{tensor};
      c10d::ReduceOptions options;
      options.rootRank = root;
      r.backend->reduce(tensors, options)->wait();
      EXPECT_TRUE(tensor.equal(r.rank == root ? sum_of_ranks(r.size, numel) : values_of(r.rank, numel)))
          << numel;
    }
  });
}

TEST_P(ShmCollectives, AllGatherIntoOneTensorAndIntoAList) {
  run([](const ShmRank& r) {
    for (int64_t numel : kSizes) {
      auto input = r.new_tensor(values_of(r.rank, numel));
      auto output = r.new_tensor(torch::zeros({numel * r.size}));
      r.backend->_allgather_base(output, input)->wait();
      std::vector<at::Tensor> inputs{input};
      std::vector<std::vector<at::Tensor>> outputs(1);
      for (int rank = 0; rank < r.size; ++rank) {
        outputs[0].push_back(torch::zeros({numel}));
      }
      r.backend->allgather(outputs, inputs)->wait();
      for (int rank = 0; rank < r.size; ++rank) {
        EXPECT_TRUE(output.narrow(0, rank * numel, numel).equal(values_of(rank, numel))) << numel;
        EXPECT_TRUE(outputs[0][rank].equal(values_of(rank, numel))) << numel;
      }
    }
  });
}

TEST_P(ShmCollectives, AllGatherInPlace) {
  run([](const ShmRank& r) {
    constexpr int64_t kNumel = 50001;
    auto output = r.new_tensor(torch::zeros({kNumel * r.size}));
    auto input = output.narrow(0, r.rank * kNumel, kNumel);
    input.copy_(values_of(r.rank, kNumel));
    r.backend->_allgather_base(output, input)->wait();
    for (int rank = 0; rank < r.size; ++rank) {
      EXPECT_TRUE(output.narrow(0, rank * kNumel, kNumel).equal(values_of(rank, kNumel)));
    }
  });
}

TEST_P(ShmCollectives, ReduceScatterFromOneTensorFromAListAndInPlace) {
  run([](const ShmRank& r) {
    for (int64_t numel : kSizes) {
      const auto all = values_of(r.rank, numel * r.size);
      const auto expected = sum_of_ranks(r.size, numel * r.size).narrow(0, r.rank * numel, numel);
      auto input = r.new_tensor(all);
      auto output = torch::zeros({numel});
      r.backend->_reduce_scatter_base(output, input)->wait();
      EXPECT_TRUE(output.equal(expected)) << numel;

      std::vector<at::Tensor> outputs{torch::zeros({numel})};
      std::vector<std::vector<at::Tensor>> inputs(1);
      for (int rank = 0; rank < r.size; ++rank) {
        inputs[0].push_back(all.narrow(0, rank * numel, numel).clone());
      }
      r.backend->reduce_scatter(outputs, inputs)->wait();
      EXPECT_TRUE(outputs[0].equal(expected)) << numel;

      auto in_place = input.narrow(0, r.rank * numel, numel);
      r.backend->_reduce_scatter_base(in_place, input)->wait();
      EXPECT_TRUE(in_place.equal(expected)) << numel;
    }
  });
}

TEST_P(ShmCollectives, GatherAndScatter) {
  run([](const ShmRank& r) {
    for (int64_t numel : kSizes) {
      const int root = static_cast<int>(numel) % r.size;
      std::vector<at::Tensor> own{r.new_tensor(values_of(r.rank, numel))};
      std::vector<std::vector<at::Tensor>> all(r.rank == root ? 1 : 0);
      for (int rank = 0; r.rank == root && rank < r.size; ++rank) {
        all[0].push_back(torch::zeros({numel}));
      }
      c10d::GatherOptions gather;
      gather.rootRank = root;
      r.backend->gather(all, own, gather)->wait();
      for (int rank = 0; r.rank == root && rank < r.size; ++rank) {
        EXPECT_TRUE(all[0][rank].equal(values_of(rank, numel))) << numel;
        all[0][rank] += 1;
      }
      c10d::ScatterOptions scatter;
      scatter.rootRank = root;
      r.backend->scatter(own, all, scatter)->wait();
      EXPECT_TRUE(own[0].equal(values_of(r.rank, numel) + 1)) << numel;
    }
  });
}

TEST_P(ShmCollectives, AllToAllWithEqualAndUnequalSplits) {
  run([](const ShmRank& r) {
    // Rank a sends (a + 2 b) * factor elements to rank b.
    for (int64_t factor : {0, 1, 300, 40000}) {
      std::vector<int64_t> sends, receives, none;
      std::vector<at::Tensor> expected;
      std::vector<at::Tensor> sent;
      for (int rank = 0; rank < r.size; ++rank) {
        sends.push_back((r.rank + 2 * rank) * factor);
        receives.push_back((rank + 2 * r.rank) * factor);
        sent.push_back(values_of(r.rank + 5 * rank, sends.back()));
        expected.push_back(values_of(rank + 5 * r.rank, receives.back()));
      }
      auto input = r.new_tensor(torch::cat(sent));
      auto output = torch::zeros_like(torch::cat(expected));
      r.backend->alltoall_base(output, input, receives, sends)->wait();
      EXPECT_TRUE(output.equal(torch::cat(expected))) << factor;

      std::vector<at::Tensor> outputs;
      for (const auto& tensor : expected) {
        outputs.push_back(torch::zeros_like(tensor));
      }
      r.backend->alltoall(outputs, sent)->wait();
      EXPECT_TRUE(torch::cat(outputs).equal(torch::cat(expected))) << factor;
    }
    auto input = torch::full({r.size, 3}, r.rank);
    auto output = torch::zeros_like(input);
    std::vector<int64_t> even;
    r.backend->alltoall_base(output, input, even, even)->wait();
    EXPECT_TRUE(output.equal(torch::arange(r.size).unsqueeze(1).expand({r.size, 3})));
  });
}

TEST_P(ShmCollectives, SplitsThatReachOutsideAreRefused) {
  run([](const ShmRank& r) {
    auto input = r.new_tensor(torch::zeros({r.size}));
    auto output = torch::zeros({r.size});
    std::vector<int64_t> even(r.size, 1);
    std::vector<int64_t> negative = even;
    negative.front() = r.size + 1;
    negative.back() -= r.size;
    if (r.size == 1) negative = {-1};
    const auto refused = [&](std::vector<int64_t>& receives, std::vector<int64_t>& sends) {
      return [&] { r.backend->alltoall_base(output, input, receives, sends); };
    };
    const std::string text =
        r.size == 1 ? "the part of rank 0 cannot have -1 of 1 rows"
                    : fmt::format("the part of rank 0 cannot have {} of {} rows", r.size + 1, r.size);
    EXPECT_THAT(refused(negative, even), testing::ThrowsMessage<ConfigError>(testing::HasSubstr(text)));
    EXPECT_THAT(refused(even, negative), testing::ThrowsMessage<ConfigError>(testing::HasSubstr(text)));
  });
}

TEST_P(ShmCollectives, ManyInFlightCompleteInOrder) {
  run([](const ShmRank& r) {
    constexpr int kCount = 200;
    std::vector<at::Tensor> tensors;
    std::vector<c10::intrusive_ptr<c10d::Work>> works;
    for (int i = 0; i < kCount; ++i) {
      const int64_t numel = i % 10 == 3 ? 200000 : i * 37;
      tensors.push_back(r.new_tensor(values_of(r.rank + i, numel)));
      works.push_back(r.all_reduce(tensors.back()));
    }
    works.back()->wait();
    for (int i = 0; i < kCount; ++i) {
      EXPECT_TRUE(works[i]->isCompleted());
      auto expected = torch::zeros_like(tensors[i]);
      for (int rank = 0; rank < r.size; ++rank) {
        expected += values_of(rank + i, tensors[i].numel());
      }
      EXPECT_TRUE(tensors[i].equal(expected)) << i;
    }
  });
}

TEST_P(ShmCollectives, BarrierHoldsUntilAllHaveArrived) {
  std::atomic<int> arrived{0};
  run([&](const ShmRank& r) {
    for (int round = 1; round <= 50; ++round) {
      ++arrived;
      r.backend->barrier()->wait();
      EXPECT_GE(arrived.load(), round * r.size);
      r.backend->barrier()->wait();
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Sizes, ShmCollectives,
                         testing::Combine(testing::Values(1, 2, 3, 4, 8), testing::Bool()),
                         [](const auto& info) {
                           return std::to_string(std::get<0>(info.param)) +
                                  (std::get<1>(info.param) ? "RanksShared" : "RanksStaged");
                         });

TEST(Shm, SharedAndOrdinaryTensorsMixInOneOperation) {
  run_shm_ranks(3, [](ShmRank r) {
    r.shared = r.rank == 1;
    for (int64_t numel : kSizes) {
      auto tensor = r.new_tensor(values_of(r.rank, numel));
      r.all_reduce(tensor)->wait();
      EXPECT_TRUE(tensor.equal(sum_of_ranks(3, numel))) << numel;
    }
  });
}

TEST(Shm, SixtyFourRanks) {
  run_shm_ranks(64, [](const ShmRank& r) {
    auto tensor = values_of(r.rank, 5000);
    r.all_reduce(tensor)->wait();
    EXPECT_TRUE(tensor.equal(sum_of_ranks(64, 5000)));
  });
}

TEST(Shm, TensorsOutliveTheirGroupAndAreReused) {
  std::vector<at::Tensor> kept(2);
  run_shm_ranks(2, [&](ShmRank r) {
    r.shared = true;
    for (int i = 0; i < 600; ++i) {  // more than the region table holds at one time
      auto tensor = r.new_tensor(values_of(r.rank, 5000));
      r.broadcast(tensor, i % 2)->wait();
      EXPECT_TRUE(tensor.equal(values_of(i % 2, 5000)));
      kept[r.rank] = tensor;
    }
  });
  EXPECT_TRUE(kept[0].equal(kept[1]));
}

TEST(Shm, MoreSharedTensorsThanRegionsStillWork) {
  run_shm_ranks(2, [&](ShmRank r) {
    r.shared = true;
    std::vector<at::Tensor> tensors;
    for (int i = 0; i < 300; ++i) {
      tensors.push_back(r.new_tensor(values_of(r.rank, 20000)));
    }
    for (auto& tensor : tensors) {
      r.all_reduce(tensor)->wait();
      EXPECT_TRUE(tensor.equal(sum_of_ranks(2, 20000)));
    }
  });
}

// Of all memory files that this process has open.
int64_t shared_memory_bytes() {
  int64_t bytes = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    const std::string target = std::filesystem::read_symlink(entry.path(), gone).string();
    struct stat status {};
    if (!gone && target.starts_with("/memfd:lockstep") && ::stat(entry.path().c_str(), &status) == 0) {
      bytes += static_cast<int64_t>(status.st_blocks) * 512;
    }
  }
  return bytes;
}

// A rank that makes a second model must not have to wait until its peers, who have mapped the
// buckets of the first one, look again.
TEST(Shm, AFreedTensorGivesItsMemoryBackAtOnce) {
  constexpr int64_t kNumel = 2 << 20;
  std::barrier everybody(2);
  run_shm_ranks(2, [&](ShmRank r) {
    r.shared = true;
    everybody.arrive_and_wait();
    const int64_t before = shared_memory_bytes();
    everybody.arrive_and_wait();
    auto tensor = r.new_tensor(values_of(r.rank, kNumel));
    r.all_reduce(tensor)->wait();
    EXPECT_TRUE(tensor.equal(sum_of_ranks(2, kNumel)));
    everybody.arrive_and_wait();
    EXPECT_GE(shared_memory_bytes() - before, 2 * kNumel * 4);
    everybody.arrive_and_wait();
    tensor.reset();
    everybody.arrive_and_wait();
    EXPECT_EQ(shared_memory_bytes(), before);
    everybody.arrive_and_wait();
    // What comes next finds memory of its own in that place.
    auto next = r.new_tensor(values_of(r.rank, kNumel));
    r.all_reduce(next)->wait();
    EXPECT_TRUE(next.equal(sum_of_ranks(2, kNumel)));
  });
}

TEST(Shm, WorkGivesFutureAndPolls) {
  run_shm_ranks(2, [](const ShmRank& r) {
    auto tensor = torch::ones({10});
    auto work = r.all_reduce(tensor);
    while (!work->isCompleted()) {
      std::this_thread::yield();
    }
    EXPECT_TRUE(work->isSuccess());
    EXPECT_EQ(r.all_reduce(tensor)->getFuture()->value().toTensorVector()[0].sum().item<float>(), 40);
  });
}

}  // namespace
}  // namespace lockstep::test
