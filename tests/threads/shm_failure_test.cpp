#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/error.h>

#include <nlohmann/json.hpp>
#include <thread>

#include "support/shm_rank.h"

namespace lockstep::test {
namespace {

using std::chrono::milliseconds;
using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

// Runs the ranks and expects this CommError on every one of them.
template <typename Function>
void expect_comm_error(int size, const std::string& text, Function function) {
  const auto errors = try_ranks(size, [&](int rank, c10::intrusive_ptr<c10d::Store> store) {
    function(ShmRank{rank, size, comm::make_shm_backend(store, rank, size, std::chrono::seconds(60))});
  });
  for (int rank = 0; rank < size; ++rank) {
    ASSERT_NE(errors[rank], nullptr) << "rank " << rank;
    EXPECT_THAT([&] { std::rethrow_exception(errors[rank]); }, ThrowsMessage<CommError>(HasSubstr(text)));
  }
}

TEST(ShmFailure, DifferentOperations) {
  expect_comm_error(
      2, "rank 0 calls all_reduce(sum) of 16 float, rank 1 calls broadcast of 8 float from rank 0",
      [](const ShmRank& r) {
        r.rank == 0 ? r.all_reduce(torch::zeros({16}))->wait() : r.broadcast(torch::zeros({8}), 0)->wait();
      });
}

TEST(ShmFailure, DifferentSizesTypesReductionsAndRoots) {
  expect_comm_error(
      3, "all_reduce(sum) of 16 float, rank 1 calls all_reduce(sum) of 2000000 float, rank 2",
      [](const ShmRank& r) { r.all_reduce(torch::zeros({r.rank == 1 ? 2000000 : 16}))->wait(); });
  expect_comm_error(2, "of 16 float, rank 1 calls all_reduce(sum) of 16 double", [](const ShmRank& r) {
    r.all_reduce(torch::zeros({16}, r.rank == 0 ? at::kFloat : at::kDouble))->wait();
  });
  expect_comm_error(2, "all_reduce(sum) of 4 float, rank 1 calls all_reduce(max)", [](const ShmRank& r) {
    r.all_reduce(torch::zeros({4}), r.rank == 0 ? c10d::ReduceOp::SUM : c10d::ReduceOp::MAX)->wait();
  });
  expect_comm_error(2, "from rank 0, rank 1 calls broadcast of 4 float from rank 1",
                    [](const ShmRank& r) { r.broadcast(torch::zeros({4}), r.rank)->wait(); });
}

TEST(ShmFailure, DifferentSplits) {
  expect_comm_error(2, "rank 0 sends 2 elements to rank 1, which expects 1", [](const ShmRank& r) {
    auto input = torch::zeros({4});
    auto output = torch::zeros({r.rank == 0 ? 4 : 3});
    std::vector<int64_t> sends{2, 2};
    std::vector<int64_t> receives{r.rank == 0 ? 2 : 1, 2};
    r.backend->alltoall_base(output, input, receives, sends)->wait();
  });
}

TEST(ShmFailure, StaysBrokenWithTheSameError) {
  expect_comm_error(2, "rank 1 calls barrier", [](const ShmRank& r) {
    auto work = r.rank == 0 ? r.all_reduce(torch::zeros({4})) : r.backend->barrier();
    EXPECT_THROW(work->wait(), CommError);
    EXPECT_TRUE(work->isCompleted());
    EXPECT_FALSE(work->isSuccess());
    EXPECT_EQ(r.backend->getError(), c10d::ErrorType::COMM_ERROR);
    r.backend->barrier();
  });
}

TEST(ShmFailure, TimeoutNamesTheRanksThatAreMissing) {
  run_ranks(3, [](int rank, c10::intrusive_ptr<c10d::Store> store) {
    const ShmRank r{rank, 3, comm::make_shm_backend(store, rank, 3, std::chrono::seconds(60))};
    if (rank == 0) {
      try {
        std::vector<at::Tensor> tensors{torch::zeros({4})};
        c10d::AllreduceOptions options;
        options.timeout = milliseconds(50);
        r.backend->allreduce(tensors, options)->wait();
        ADD_FAILURE() << "no error";
      } catch (const CommError& error) {
        EXPECT_THAT(error.what(),
                    HasSubstr("ranks 1,2 have not arrived within 50 ms, rank 0 waits in all_reduce"));
        EXPECT_EQ(error.failed_rank(), 1);
        EXPECT_TRUE(error.can_rebuild());
      }
      store->set("timed out", "yes");
    } else {
      store->wait({"timed out"});
      // Those who come later hear the same.
      EXPECT_THAT([&] { r.all_reduce(torch::zeros({4}))->wait(); },
                  ThrowsMessage<CommError>(HasSubstr("not arrived within 50 ms, rank 0 waits")));
    }
  });
}

TEST(ShmFailure, ARankThatLeavesIsToldFromOneThatDies) {
  run_ranks(2, [](int rank, c10::intrusive_ptr<c10d::Store> store) {
    ShmRank r{rank, 2, comm::make_shm_backend(store, rank, 2, std::chrono::seconds(60))};
    auto tensor = torch::ones({5000});
    if (rank == 1) {
      r.all_reduce(tensor)->wait();  // the last thing it does; rank 0 may still be at it
      r.backend.reset();
      return;
    }
    r.all_reduce(tensor)->wait();
    EXPECT_EQ(tensor[0].item<float>(), 2);
    EXPECT_THAT(
        [&] { r.all_reduce(tensor)->wait(); },
        ThrowsMessage<CommError>(AllOf(HasSubstr("rank 1 left the group"), HasSubstr("all_reduce(sum)"))));
  });
}

TEST(ShmFailure, PollingFindsItToo) {
  run_ranks(2, [](int rank, c10::intrusive_ptr<c10d::Store> store) {
    ShmRank r{rank, 2, comm::make_shm_backend(store, rank, 2, std::chrono::seconds(60))};
    if (rank == 0) {
      auto work = r.all_reduce(torch::ones({5}));
      while (!work->isCompleted()) {
        std::this_thread::yield();
      }
      EXPECT_FALSE(work->isSuccess());
      EXPECT_THROW(std::rethrow_exception(work->exception()), CommError);
    }
  });
}

TEST(ShmFailure, PollingAMessageFindsThatItsPeerHasLeft) {
  for (const bool is_send : {false, true}) {
    run_ranks(2, [&](int rank, c10::intrusive_ptr<c10d::Store> store) {
      ShmRank r{rank, 2, comm::make_shm_backend(store, rank, 2, std::chrono::seconds(60))};
      if (rank == 1) return;
      const auto work = is_send ? r.send(torch::ones({5}), 1, 0) : r.recv(torch::zeros({5}), 1, 0);
      while (!work->isCompleted()) {
        std::this_thread::yield();
      }
      EXPECT_FALSE(work->isSuccess());
      EXPECT_THAT([&] { std::rethrow_exception(work->exception()); },
                  ThrowsMessage<CommError>(HasSubstr("rank 1 left the group")));
    });
  }
}

TEST(ShmFailure, WrongArgumentsLeaveTheGroupWhole) {
  run_shm_ranks(2, [](const ShmRank& r) {
    EXPECT_THROW(r.all_reduce(torch::zeros({4, 4}).t()), ConfigError);
    EXPECT_THROW(r.all_reduce(torch::zeros({4}).to_sparse()), ConfigError);
    EXPECT_THROW(r.all_reduce(torch::zeros({4}, at::kLong), c10d::ReduceOp::AVG), ConfigError);
    EXPECT_THROW(r.all_reduce(torch::zeros({4}, at::kComplexFloat)), ConfigError);
    EXPECT_THROW(r.all_reduce(at::Tensor()), ConfigError);
    EXPECT_THROW(r.broadcast(torch::zeros({4}), 2), ConfigError);
    EXPECT_THROW(r.send(torch::zeros({4}), -1, 0), ConfigError);
    auto input = torch::zeros({4});
    auto output = torch::zeros({7});
    EXPECT_THROW(r.backend->_allgather_base(output, input), ConfigError);
    EXPECT_THROW(r.backend->_reduce_scatter_base(input, output), ConfigError);
    EXPECT_THROW(r.backend->allocateTensor(4, at::TensorOptions(at::kCUDA)), ConfigError);
    auto tensor = torch::ones({4});
    r.all_reduce(tensor)->wait();
    EXPECT_EQ(tensor.sum().item<float>(), 8);
  });
}

TEST(ShmFailure, TwoThreadsAtOnceAreRefused) {
  run_ranks(2, [](int rank, c10::intrusive_ptr<c10d::Store> store) {
    const ShmRank r{rank, 2, comm::make_shm_backend(store, rank, 2, std::chrono::seconds(60))};
    if (rank == 1) {
      store->wait({"refused"});
      r.backend->barrier()->wait();
      return;
    }
    auto work = r.backend->barrier();
    std::thread waits([&] {
      while (!work->isSuccess()) {
        try {
          work->wait();
        } catch (const ConfigError&) {  // it was the second one
        }
      }
    });
    const auto poll_until_refused = [&] {
      while (true) {
        work->isCompleted();
      }
    };
    EXPECT_THROW(poll_until_refused(), ConfigError);
    store->set("refused", "yes");
    waits.join();
  });
}

// Rank 1 is made up here, from what rank 0 says of itself and these changes.
void expect_refused(const nlohmann::json& changes, const std::string& text) {
  run_ranks(2, [&](int rank, c10::intrusive_ptr<c10d::Store> store) {
    if (rank == 0) {
      EXPECT_THAT([&] { comm::make_shm_backend(store, 0, 2, std::chrono::seconds(60)); },
                  ThrowsMessage<ConfigError>(AllOf(HasSubstr("rank 0 cannot reach the memory of rank 1"),
                                                   HasSubstr(text), HasSubstr("use gloo"))));
      return;
    }
    auto hello = nlohmann::json::parse(store->get_to_str("shm/hello/0"));
    hello.update(changes);
    store->set("shm/hello/1", hello.dump());
    store->set("shm/mapped/1", std::string());
  });
}

TEST(ShmFailure, RanksThatCannotShareMemoryAreRefused) {
  expect_refused({{"host", "elsewhere"}}, "against elsewhere");
  expect_refused({{"pid_namespace", "pid:[1]"}}, "pid_namespace");
  expect_refused({{"version", 0}}, "another version");
  expect_refused({{"pid", 1 << 30}}, "No such file or directory");
  // An address of memory is not taken from the store.
  expect_refused({{"magic", 0}, {"address", 1}}, "it claims to be of this process and is not");
}

TEST(ShmFailure, NobodyComes) {
  run_ranks(1, [](int rank, c10::intrusive_ptr<c10d::Store> store) {
    EXPECT_THAT([&] { comm::make_shm_backend(store, 0, 3, milliseconds(50)); },
                ThrowsMessage<CommError>(
                    HasSubstr("not all ranks joined the group within 50 ms: missing ranks 1,2")));
    EXPECT_THROW(comm::make_shm_backend(store, 0, 65, milliseconds(50)), ConfigError);
    EXPECT_THROW(comm::make_shm_backend(store, 2, 2, milliseconds(50)), ConfigError);
  });
}

}  // namespace
}  // namespace lockstep::test
