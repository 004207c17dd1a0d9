// Every operation of Communicator over every backend, with ranks as threads.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/communicator.h>
#include <lockstep/error.h>
#include <torch/torch.h>

#include <future>

#include "support/group_case.h"

namespace lockstep {
namespace {

using test::GroupCase;
using test::run_group;

class CommunicatorTest : public testing::TestWithParam<GroupCase> {
 protected:
  void run(const std::function<void(Communicator&)>& body) { run_group(GetParam(), body); }
};

// Different on every rank and in every element.
at::Tensor sample(int rank, int64_t numel, at::ScalarType dtype = at::kFloat) {
  return (torch::arange(numel, at::kFloat) * 0.5 + 10 * (rank + 1)).to(dtype);
}

// The samples of all ranks, one row each.
at::Tensor samples(int size, int64_t numel, at::ScalarType dtype = at::kFloat) {
  std::vector<at::Tensor> rows;
  for (int rank = 0; rank < size; ++rank) {
    rows.push_back(sample(rank, numel, dtype));
  }
  return torch::stack(rows);
}

TEST_P(CommunicatorTest, KnowsItsPlace) {
  std::atomic<int> rank_sum = 0;
  run([&](Communicator& group) {
    EXPECT_EQ(group.size(), GetParam().size());
    EXPECT_NE(group.backend(), "auto");
    rank_sum += group.rank();
  });
  const int size = GetParam().size();
  EXPECT_EQ(rank_sum, size * (size - 1) / 2);
}

TEST_P(CommunicatorTest, BroadcastFromEachRoot) {
  run([](Communicator& group) {
    for (int root = 0; root < group.size(); ++root) {
      at::Tensor tensor = sample(group.rank(), 1000);
      group.broadcast(tensor, root).wait();
      EXPECT_TRUE(torch::equal(tensor, sample(root, 1000)));
    }
  });
}

TEST_P(CommunicatorTest, BroadcastOfEveryDtype) {
  run([](Communicator& group) {
    for (const auto dtype : {at::kBool, at::kByte, at::kChar, at::kShort, at::kInt, at::kLong, at::kHalf,
                             at::kBFloat16, at::kFloat, at::kDouble, at::kComplexFloat}) {
      at::Tensor tensor = torch::full({3, 5}, group.rank() == 0 ? 1 : 0, dtype);
      group.broadcast(tensor).wait();
      EXPECT_TRUE(torch::equal(tensor, torch::ones({3, 5}, dtype))) << dtype;
    }
  });
}

TEST_P(CommunicatorTest, AllReduceWithEachOperation) {
  run([](Communicator& group) {
    const at::Tensor all = samples(group.size(), 777, at::kDouble);
    const auto reduced = [&](ReduceOp op) {
      at::Tensor tensor = sample(group.rank(), 777, at::kDouble);
      group.all_reduce(tensor, op).wait();
      return tensor;
    };
    EXPECT_TRUE(torch::allclose(reduced(ReduceOp::kSum), all.sum(0)));
    EXPECT_TRUE(torch::allclose(reduced(ReduceOp::kMean), all.mean(0)));
    EXPECT_TRUE(torch::equal(reduced(ReduceOp::kMin), all.amin(0)));
    EXPECT_TRUE(torch::equal(reduced(ReduceOp::kMax), all.amax(0)));
    EXPECT_TRUE(torch::allclose(reduced(ReduceOp::kProduct), all.prod(0)));
  });
}

TEST_P(CommunicatorTest, AllReduceOfEachNumericDtype) {
  run([](Communicator& group) {
    const int size = group.size();
    for (const auto dtype :
         {at::kByte, at::kChar, at::kInt, at::kLong, at::kHalf, at::kBFloat16, at::kFloat, at::kDouble}) {
      at::Tensor tensor = torch::full({2, 33}, group.rank() + 1, dtype);
      group.all_reduce(tensor).wait();
      EXPECT_TRUE(torch::equal(tensor, torch::full({2, 33}, size * (size + 1) / 2, dtype))) << dtype;
    }
  });
}

// As sums of real and imaginary parts, bit for bit.
TEST_P(CommunicatorTest, ComplexNumbersAreReducedAndMovedByParts) {
  run([](Communicator& group) {
    for (const auto dtype : {at::kComplexFloat, at::kComplexDouble}) {
      const int64_t blocks = group.size();
      const at::Tensor own =
          torch::complex(sample(group.rank(), blocks * 101), sample(-3, blocks * 101) / 7).to(dtype);
      const auto parts = [](const at::Tensor& tensor) { return torch::view_as_real(tensor).contiguous(); };
      for (const auto op : {ReduceOp::kSum, ReduceOp::kMean}) {
        const at::Tensor reduced = own.clone();
        const at::Tensor expected = parts(own).clone();
        group.all_reduce(reduced, op).wait();
        group.all_reduce(expected, op).wait();
        EXPECT_TRUE(torch::equal(parts(reduced), expected)) << dtype;
        const at::Tensor block = torch::empty({101}, dtype);
        group.reduce_scatter(block, own, op).wait();
        EXPECT_TRUE(torch::allclose(block, reduced.view({blocks, 101})[group.rank()])) << dtype;
      }
      const at::Tensor gathered = torch::empty({blocks, blocks * 101}, dtype);
      group.all_gather(gathered, own).wait();
      EXPECT_TRUE(torch::equal(gathered[group.rank()], own)) << dtype;
      const at::Tensor collected = group.rank() == 0 ? torch::empty_like(gathered) : at::Tensor();
      group.gather(collected, own, 0).wait();
      if (group.rank() == 0) EXPECT_TRUE(torch::equal(collected, gathered)) << dtype;
      const at::Tensor dealt = torch::empty_like(own);
      group.scatter(dealt, collected, 0).wait();
      EXPECT_TRUE(torch::equal(dealt, own)) << dtype;
      const at::Tensor copied = own.clone();
      group.broadcast(copied).wait();
      EXPECT_TRUE(torch::equal(copied, gathered[0])) << dtype;
    }
  });
}

TEST_P(CommunicatorTest, AllReduceGivesEveryRankTheSameBits) {
  run([](Communicator& group) {
    torch::manual_seed(0);
    at::Tensor tensor = torch::rand({10007}) / (group.rank() + 3);
    group.all_reduce(tensor, ReduceOp::kMean).wait();
    at::Tensor all = torch::empty({group.size(), 10007});
    group.all_gather(all, tensor).wait();
    for (int rank = 0; rank < group.size(); ++rank) {
      EXPECT_TRUE(torch::equal(all[rank], tensor)) << rank;
    }
  });
}

// As in DDP: each contribution times 1/size, then the sum.
TEST_P(CommunicatorTest, MeanScalesBeforeItSums) {
  run([](Communicator& group) {
    // The sum of two or more of these would overflow, unless scaled.
    at::Tensor tensor = torch::full({5}, std::numeric_limits<float>::max() * 0.6f);
    at::Tensor expected = tensor.mul(1.0 / group.size()) * group.size();
    group.all_reduce(tensor, ReduceOp::kMean).wait();
    EXPECT_TRUE(torch::allclose(tensor, expected));
    at::Tensor block = torch::empty({5});
    group
        .reduce_scatter(block, torch::full({group.size() * 5}, std::numeric_limits<float>::max() * 0.6f),
                        ReduceOp::kMean)
        .wait();
    EXPECT_TRUE(torch::allclose(block, expected));
  });
}

TEST_P(CommunicatorTest, ReduceScatterGivesEachRankItsBlock) {
  run([](Communicator& group) {
    for (const auto op : {ReduceOp::kSum, ReduceOp::kMean, ReduceOp::kMax}) {
      const at::Tensor input = sample(group.rank(), group.size() * 101);
      const at::Tensor before = input.clone();
      at::Tensor output = torch::empty({101});
      group.reduce_scatter(output, input, op).wait();
      const at::Tensor all = samples(group.size(), group.size() * 101);
      const at::Tensor reduced = op == ReduceOp::kSum    ? all.sum(0)
                                 : op == ReduceOp::kMean ? all.mean(0)
                                                         : all.amax(0);
      EXPECT_TRUE(torch::allclose(output, reduced.view({group.size(), 101})[group.rank()]));
      EXPECT_TRUE(torch::equal(input, before)) << "the input is not the operation's to change";
    }
  });
}

TEST_P(CommunicatorTest, AllGatherKeepsRankOrder) {
  run([](Communicator& group) {
    at::Tensor output = torch::empty({group.size(), 3, 7});
    group.all_gather(output, sample(group.rank(), 21).view({3, 7})).wait();
    EXPECT_TRUE(torch::equal(output.view({group.size(), 21}), samples(group.size(), 21)));
  });
}

TEST_P(CommunicatorTest, AllGatherUneven) {
  run([](Communicator& group) {
    const auto mine = [](int rank) { return torch::full({rank * 2, 3}, rank, at::kLong); };
    const std::vector<at::Tensor> all = group.all_gather_uneven(mine(group.rank()));
    ASSERT_EQ(static_cast<int>(all.size()), group.size());
    for (int rank = 0; rank < group.size(); ++rank) {
      EXPECT_TRUE(torch::equal(all[static_cast<size_t>(rank)], mine(rank))) << rank;
    }
  });
}

TEST_P(CommunicatorTest, GatherToEachRoot) {
  run([](Communicator& group) {
    for (int root = 0; root < group.size(); ++root) {
      at::Tensor output = group.rank() == root ? torch::empty({group.size(), 17}) : at::Tensor();
      group.gather(output, sample(group.rank(), 17), root).wait();
      if (group.rank() == root) {
        EXPECT_TRUE(torch::equal(output, samples(group.size(), 17)));
      }
    }
  });
}

TEST_P(CommunicatorTest, ScatterFromEachRoot) {
  run([](Communicator& group) {
    for (int root = 0; root < group.size(); ++root) {
      const at::Tensor whole = samples(group.size(), 17) + root;
      at::Tensor output = torch::empty({17});
      group.scatter(output, group.rank() == root ? whole : at::Tensor(), root).wait();
      EXPECT_TRUE(torch::equal(output, whole[group.rank()]));
    }
  });
}

TEST_P(CommunicatorTest, AllToAllTransposesBlocks) {
  run([](Communicator& group) {
    const int size = group.size();
    // Block j of rank i holds 100 i + j.
    const at::Tensor input = (torch::arange(size) + 100 * group.rank()).view({size, 1}).repeat({1, 9});
    at::Tensor output = torch::empty_like(input);
    group.all_to_all(output, input.contiguous()).wait();
    const at::Tensor expected = (torch::arange(size) * 100 + group.rank()).view({size, 1}).repeat({1, 9});
    EXPECT_TRUE(torch::equal(output, expected));
  });
}

TEST_P(CommunicatorTest, SendAndReceiveAroundARing) {
  run([](Communicator& group) {
    if (group.size() == 1) {
      return;  // nobody to send to
    }
    const int next = (group.rank() + 1) % group.size();
    const int previous = (group.rank() + group.size() - 1) % group.size();
    at::Tensor received = torch::empty({4000});
    Work receive = group.recv(received, previous, 7);
    Work send = group.send(sample(group.rank(), 4000), next, 7);
    send.wait();
    receive.wait();
    EXPECT_TRUE(torch::equal(received, sample(previous, 4000)));
  });
}

TEST_P(CommunicatorTest, ManyOperationsAtOnce) {
  run([](Communicator& group) {
    std::vector<at::Tensor> tensors;
    std::vector<Work> works;
    for (int i = 0; i < 20; ++i) {
      tensors.push_back(sample(group.rank() + i, 50));
      works.push_back(group.all_reduce(tensors.back()));
    }
    for (Work& work : works) {
      work.wait();
      work.wait();  // again is allowed
      EXPECT_TRUE(work.done());
    }
    for (int i = 0; i < 20; ++i) {
      at::Tensor expected = torch::zeros({50});
      for (int rank = 0; rank < group.size(); ++rank) {
        expected += sample(rank + i, 50);
      }
      EXPECT_TRUE(torch::allclose(tensors[static_cast<size_t>(i)], expected)) << i;
    }
  });
}

TEST_P(CommunicatorTest, DoneComesTrueWithoutWait) {
  run([](Communicator& group) {
    at::Tensor block = torch::empty({8});
    const at::Tensor input = sample(group.rank(), group.size() * 8);
    Work work = group.reduce_scatter(block, input);
    while (!work.done()) {
      std::this_thread::yield();
    }
    EXPECT_TRUE(torch::allclose(
        block, samples(group.size(), group.size() * 8).sum(0).view({group.size(), 8})[group.rank()]));
    work.wait();
  });
}

TEST_P(CommunicatorTest, Bytes) {
  run([](Communicator& group) {
    const auto text = [](int rank) {
      return std::string(static_cast<size_t>(rank) * 1000, static_cast<char>('a' + rank));
    };
    for (int root = 0; root < group.size(); ++root) {
      EXPECT_EQ(group.broadcast_bytes(text(group.rank()), root), text(root));
    }
    const std::vector<std::string> all = group.all_gather_bytes(text(group.rank()));
    for (int rank = 0; rank < group.size(); ++rank) {
      EXPECT_EQ(all.at(static_cast<size_t>(rank)), text(rank));
    }
    EXPECT_EQ(group.broadcast_bytes(""), "");
  });
}

TEST_P(CommunicatorTest, EmptyTensors) {
  run([](Communicator& group) {
    const at::Tensor empty = torch::empty({0, 3});
    group.all_reduce(empty, ReduceOp::kMean).wait();
    group.broadcast(empty).wait();
    group.all_gather(torch::empty({0}), empty).wait();
    group.reduce_scatter(torch::empty({0}), empty).wait();
    group.all_to_all(torch::empty({0}), empty).wait();
    EXPECT_EQ(group.all_gather_uneven(empty).back().sizes(), empty.sizes());
  });
}

TEST_P(CommunicatorTest, LeafThatRequiresGrad) {
  run([](Communicator& group) {
    at::Tensor parameter = torch::full({6}, group.rank() + 1.0).requires_grad_();
    group.broadcast(parameter).wait();
    EXPECT_TRUE(torch::equal(parameter.detach(), torch::ones({6})));
    group.all_reduce(parameter, ReduceOp::kMean).wait();
    EXPECT_TRUE(torch::allclose(parameter.detach(), torch::ones({6})));
    EXPECT_TRUE(parameter.is_leaf());
  });
}

TEST_P(CommunicatorTest, SubgroupsInReverseOrder) {
  run([](Communicator& group) {
    std::vector<int> all;
    std::vector<int> even;
    for (int rank = group.size() - 1; rank >= 0; --rank) {
      all.push_back(rank);
      if (rank % 2 == 0) {
        even.push_back(rank);
      }
    }
    auto reversed = group.subgroup(all);
    ASSERT_TRUE(reversed.has_value());
    EXPECT_EQ(reversed->rank(), group.size() - 1 - group.rank());
    auto evens = group.subgroup(even);
    EXPECT_EQ(evens.has_value(), group.rank() % 2 == 0);

    at::Tensor gathered = torch::empty({group.size()}, at::kLong);
    reversed->all_gather(gathered, torch::tensor({group.rank()})).wait();
    EXPECT_TRUE(torch::equal(gathered, torch::arange(group.size() - 1, -1, -1)));
    if (evens) {
      at::Tensor count = torch::ones({1});
      evens->all_reduce(count).wait();
      EXPECT_EQ(count.item<int>(), static_cast<int>(even.size()));
    }
  });
}

TEST_P(CommunicatorTest, AllocatedMemoryIsReducible) {
  run([](Communicator& group) {
    at::Tensor flat = group.allocate(5000, torch::empty({0}, at::kDouble));
    ASSERT_EQ(flat.numel(), 5000);
    ASSERT_EQ(flat.scalar_type(), at::kDouble);
    flat.fill_(group.rank() + 1);
    at::Tensor part = flat.narrow(0, 1000, 2000);
    group.all_reduce(part).wait();
    const double sum = group.size() * (group.size() + 1) / 2.0;
    EXPECT_TRUE(torch::equal(part, torch::full({2000}, sum, at::kDouble)));
    EXPECT_EQ(flat[999].item<double>(), group.rank() + 1.0);
  });
}

TEST_P(CommunicatorTest, Barrier) {
  std::atomic<int> arrived = 0;
  run([&](Communicator& group) {
    ++arrived;
    group.barrier();
    EXPECT_EQ(arrived, group.size());
  });
}

TEST_P(CommunicatorTest, ShapesThatDifferTooMuchAreNamed) {
  run([](Communicator& group) {
    if (group.size() == 1) {
      return;
    }
    const at::Tensor mine = group.rank() == 1 ? torch::zeros({2, 4}) : torch::zeros({2, 3});
    try {
      group.all_gather_uneven(mine);
      ADD_FAILURE() << "accepted";
    } catch (const ConfigError& error) {
      EXPECT_THAT(error.what(), testing::HasSubstr("Float [2, 4]"));
      EXPECT_THAT(error.what(), testing::HasSubstr("Float [2, 3]"));
    }
  });
}

TEST_P(CommunicatorTest, ATimeoutOfOneCallIsACommError) {
  if (GetParam().size() == 1) {
    return;
  }
  std::promise<void> over;
  const auto is_over = over.get_future().share();
  run([&](Communicator& group) {
    if (group.rank() != 0) {
      is_over.wait();
      return;
    }
    at::Tensor tensor = torch::ones({4});
    EXPECT_THROW(group.all_reduce(tensor, ReduceOp::kSum, std::chrono::milliseconds(200)).wait(), CommError);
    over.set_value();
  });
}

// Added to the time of now, such a limit overflows: each wait that is not over at once would fail.
TEST_P(CommunicatorTest, ATimeoutMayBeForEver) {
  constexpr auto kForEver = std::chrono::milliseconds::max();
  run_group(GetParam(), {.timeout = kForEver, .connect_timeout = kForEver}, [&](Communicator& group) {
    const int next = (group.rank() + 1) % group.size();
    const int previous = (group.rank() + group.size() - 1) % group.size();
    for (int i = 0; i < 50; ++i) {
      at::Tensor tensor = torch::ones({i == 0 ? 100'000 : 4});
      group.all_reduce(tensor).wait();
      group.all_reduce(tensor, ReduceOp::kSum, kForEver).wait();
      EXPECT_EQ(tensor[0].item<int>(), group.size() * group.size());
      if (group.size() == 1) continue;
      at::Tensor received = torch::zeros({4});
      Work sent = group.send(torch::full({4}, group.rank(), at::kFloat), next, 0, kForEver);
      group.recv(received, previous, 0, kForEver).wait();
      sent.wait();
      EXPECT_EQ(received[0].item<int>(), previous);
    }
    group.barrier(kForEver);
  });
}

TEST_P(CommunicatorTest, AMeetingIsOverWhenAllAreThere) {
  std::atomic<int> arrived = 0;
  run([&](Communicator& group) {
    for (int round = 1; round <= 4; ++round) {
      ++arrived;
      group.meet("lunch");
      EXPECT_GE(arrived, round * group.size());
    }
    group.meet("tea");
  });
}

TEST_P(CommunicatorTest, AMeetingNamesWhoDidNotCome) {
  const int size = GetParam().size();
  if (size == 1) {
    return;
  }
  const auto error_at_meeting = [](Communicator& group, std::chrono::milliseconds patience) -> std::string {
    try {
      group.meet("save", patience);
      return "all came";
    } catch (const ConfigError& error) {
      return error.what();
    }
  };
  std::promise<void> over;
  const auto is_over = over.get_future().share();
  run([&](Communicator& group) {
    if (group.rank() == size - 1) {
      is_over.wait();
      EXPECT_THAT(error_at_meeting(group, std::chrono::hours(1)),
                  testing::HasSubstr("after the others had given up"));
      return;
    }
    EXPECT_THAT(error_at_meeting(group, std::chrono::milliseconds(group.rank() == 0 ? 100 : 3'600'000)),
                testing::HasSubstr("save: rank " + std::to_string(size - 1) + " did not come within"));
    if (group.rank() == 0) over.set_value();
  });
}

std::vector<GroupCase> every_group() {
  std::vector<GroupCase> groups;
  for (const std::vector<int>& one_host :
       std::vector<std::vector<int>>{{0}, {0, 0}, {0, 0, 0}, {0, 0, 0, 0}}) {
    groups.push_back({"gloo", one_host});
    groups.push_back({"shm", one_host});
  }
  groups.push_back({"auto", {0}});
  groups.push_back({"auto", {0, 0, 0}});
  // Several hosts: regular, unequal, interleaved, one rank each.
  for (const std::vector<int>& hosts :
       std::vector<std::vector<int>>{{0, 0, 1, 1}, {0, 0, 0, 1}, {0, 1, 1}, {0, 1, 0, 1}, {0, 1, 2}}) {
    groups.push_back({"auto", hosts});
  }
  return groups;
}

INSTANTIATE_TEST_SUITE_P(Groups, CommunicatorTest, testing::ValuesIn(every_group()),
                         [](const auto& info) { return info.param.name(); });

}  // namespace
}  // namespace lockstep
