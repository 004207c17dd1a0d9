// Every operation of Communicator on tensors of a GPU: NCCL with one rank, and Gloo and NCCL
// between processes that share the GPU.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/communicator.h>
#include <lockstep/error.h>
#include <torch/torch.h>

#include "support/config_error.h"
#include "support/gpu.h"

namespace lockstep {
namespace {

using test::error_of;
using testing::HasSubstr;

// The tensors of a group's ranks, on its device.
class Ranks {
 public:
  Ranks(const Communicator& group, c10::Device device) : group_(group), device_(device) {}

  // Different on every rank and in every element.
  at::Tensor of(int rank, int64_t numel, at::ScalarType dtype = at::kFloat) const {
    return (torch::arange(numel, at::kFloat) * 0.5 + 10 * (rank + 1)).to(device_, dtype);
  }
  at::Tensor own(int64_t numel, at::ScalarType dtype = at::kFloat) const {
    return of(group_.rank(), numel, dtype);
  }
  // One row each.
  at::Tensor all(int64_t numel, at::ScalarType dtype = at::kFloat) const {
    std::vector<at::Tensor> rows;
    for (int rank = 0; rank < group_.size(); ++rank) rows.push_back(of(rank, numel, dtype));
    return torch::stack(rows);
  }
  at::Tensor empty(at::IntArrayRef sizes) const { return torch::full(sizes, -1.0, device_); }

 private:
  const Communicator& group_;
  c10::Device device_;
};

void expect_reductions(const Communicator& group, const Ranks& ranks) {
  const auto reduced = [&](ReduceOp op, at::ScalarType dtype) {
    at::Tensor tensor = ranks.own(777, dtype);
    group.all_reduce(tensor, op).wait();
    return tensor;
  };
  for (const auto dtype : {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf}) {
    const at::Tensor all = ranks.all(777, dtype).to(at::kDouble);
    const double tolerance = dtype == at::kBFloat16 ? 1e-2 : dtype == at::kHalf ? 1e-3 : 1e-6;
    const auto expect = [&](ReduceOp op, const at::Tensor& expected, const char* name) {
      const at::Tensor result = reduced(op, dtype).to(at::kDouble);
      EXPECT_TRUE(torch::allclose(result, expected, tolerance, tolerance))
          << name << dtype << ": off by " << (result - expected).abs().max().item<double>() << " of "
          << expected.abs().max().item<double>();
    };
    expect(ReduceOp::kSum, all.sum(0), "sum of ");
    expect(ReduceOp::kMean, all.mean(0), "mean of ");
    expect(ReduceOp::kMin, all.amin(0), "minimum of ");
    expect(ReduceOp::kMax, all.amax(0), "maximum of ");
    if (dtype != at::kHalf) expect(ReduceOp::kProduct, all.prod(0), "product of ");  // beyond 65504
  }
  for (const auto dtype : {at::kByte, at::kChar, at::kInt, at::kLong}) {
    const at::Tensor tensor = ranks.own(5).fill_(group.rank() + 1).to(dtype);
    group.all_reduce(tensor).wait();
    EXPECT_TRUE(tensor.eq(group.size() * (group.size() + 1) / 2).all().item<bool>()) << dtype;
  }
  for (const auto op : {ReduceOp::kSum, ReduceOp::kMean, ReduceOp::kMax}) {
    for (const auto dtype : {at::kFloat, at::kBFloat16}) {
      const at::Tensor input = ranks.own(group.size() * 101, dtype);
      const at::Tensor output = ranks.empty({101}).to(dtype);
      group.reduce_scatter(output, input, op).wait();
      const at::Tensor all = ranks.all(group.size() * 101, dtype).to(at::kDouble);
      const at::Tensor whole = op == ReduceOp::kSum    ? all.sum(0)
                               : op == ReduceOp::kMean ? all.mean(0)
                                                       : all.amax(0);
      const at::Tensor expected = whole.view({group.size(), 101})[group.rank()];
      EXPECT_TRUE(torch::allclose(output.to(at::kDouble), expected, dtype == at::kFloat ? 1e-5 : 1e-2))
          << dtype;
      EXPECT_TRUE(torch::equal(input, ranks.own(group.size() * 101, dtype)))
          << "the input is not its to change";
    }
  }
}

void expect_gathers(const Communicator& group, const Ranks& ranks) {
  const int size = group.size();
  for (int root = 0; root < size; ++root) {
    const at::Tensor tensor = ranks.own(1000);
    group.broadcast(tensor, root).wait();
    EXPECT_TRUE(torch::equal(tensor, ranks.of(root, 1000)));

    const at::Tensor gathered = group.rank() == root ? ranks.empty({size, 17}) : at::Tensor();
    group.gather(gathered, ranks.own(17), root).wait();
    if (group.rank() == root) {
      EXPECT_TRUE(torch::equal(gathered, ranks.all(17)));
    }

    const at::Tensor whole = ranks.all(17) + root;
    const at::Tensor part = ranks.empty({17});
    group.scatter(part, group.rank() == root ? whole : at::Tensor(), root).wait();
    EXPECT_TRUE(torch::equal(part, whole[group.rank()]));
  }
  const at::Tensor all = ranks.empty({size, 3, 7});
  group.all_gather(all, ranks.own(21).view({3, 7})).wait();
  EXPECT_TRUE(torch::equal(all.view({size, 21}), ranks.all(21)));

  const std::vector<at::Tensor> uneven = group.all_gather_uneven(ranks.own(3 + 2 * group.rank()));
  ASSERT_EQ(static_cast<int>(uneven.size()), size);
  for (int rank = 0; rank < size; ++rank) {
    EXPECT_TRUE(torch::equal(uneven[static_cast<size_t>(rank)], ranks.of(rank, 3 + 2 * rank))) << rank;
  }
  // Block j of rank i holds 100 i + j.
  const auto blocks = [&](const at::Tensor& values) { return values.view({size, 1}).repeat({1, 9}); };
  const at::Tensor index = torch::arange(size, ranks.own(1).options());
  const at::Tensor exchanged = ranks.empty({size, 9});
  group.all_to_all(exchanged, blocks(index + 100 * group.rank()).contiguous()).wait();
  EXPECT_TRUE(torch::equal(exchanged, blocks(index * 100 + group.rank())));
}

void expect_the_rest(const Communicator& group, const Ranks& ranks) {
  for (const auto dtype : {at::kBool, at::kShort, at::kComplexFloat}) {
    const at::Tensor tensor = ranks.own(15).fill_(group.rank() == 0 ? 1 : 0).to(dtype);
    group.broadcast(tensor).wait();
    EXPECT_TRUE(tensor.eq(1).all().item<bool>()) << dtype;
  }
  std::vector<at::Tensor> tensors;
  std::vector<Work> works;
  for (int i = 0; i < 20; ++i) {
    tensors.push_back(ranks.of(group.rank() + i, 50));
    works.push_back(group.all_reduce(tensors.back()));
  }
  for (int i = 0; i < 20; ++i) {
    works[static_cast<size_t>(i)].wait();
    at::Tensor expected = torch::zeros_like(tensors[0]);
    for (int rank = 0; rank < group.size(); ++rank) expected += ranks.of(rank + i, 50);
    EXPECT_TRUE(torch::allclose(tensors[static_cast<size_t>(i)], expected)) << i;
  }
  const std::string mine(static_cast<size_t>(1000 * group.rank() + 3), static_cast<char>('a' + group.rank()));
  EXPECT_EQ(group.broadcast_bytes(mine), "aaa");
  const std::vector<std::string> bytes = group.all_gather_bytes(mine);
  ASSERT_EQ(static_cast<int>(bytes.size()), group.size());
  EXPECT_EQ(bytes[static_cast<size_t>(group.rank())], mine);

  const at::Tensor memory = group.allocate(33, ranks.own(1));
  EXPECT_EQ(memory.device(), ranks.own(1).device());
  memory.fill_(1);
  group.all_reduce(memory).wait();
  EXPECT_TRUE(memory.eq(group.size()).all().item<bool>());

  const std::optional<Communicator> first = group.subgroup({0});
  ASSERT_EQ(first.has_value(), group.rank() == 0);
  if (first) {
    const at::Tensor tensor = ranks.own(4);
    first->all_reduce(tensor).wait();
    EXPECT_TRUE(torch::equal(tensor, ranks.own(4)));
  }
  group.meet("the end of the test");
  group.barrier();
}

void expect_every_operation(const Communicator& group, c10::Device device) {
  const Ranks ranks(group, device);
  expect_reductions(group, ranks);
  expect_gathers(group, ranks);
  expect_the_rest(group, ranks);
}

// In a ring. Even ranks send first: NCCL runs the messages of a rank one after another.
void expect_messages(const Communicator& group, const Ranks& ranks) {
  const int next = (group.rank() + 1) % group.size();
  const int previous = (group.rank() + group.size() - 1) % group.size();
  const at::Tensor received = ranks.empty({9});
  if (group.rank() % 2 == 0) group.send(ranks.own(9), next).wait();
  group.recv(received, previous).wait();
  if (group.rank() % 2 == 1) group.send(ranks.own(9), next).wait();
  EXPECT_TRUE(torch::equal(received, ranks.of(previous, 9)));
}

// Ranks that round differently would drift apart.
void expect_equal_means(const Communicator& group, const Ranks& ranks) {
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    const at::Tensor mean = (ranks.own(5000) / 3).to(dtype);
    group.all_reduce(mean, ReduceOp::kMean).wait();
    const at::Tensor first = mean.clone();
    group.broadcast(first).wait();
    EXPECT_TRUE(torch::equal(mean, first)) << dtype;
  }
}

class GpuCommunicatorTest : public test::GpuTest {
 protected:
  void expect_every_operation_over_nccl(int size) const {
    run_nccl(size, [&](World& world) {
      const Communicator& group = world.communicator();
      ASSERT_EQ(group.size(), size);
      expect_every_operation(group, device());
      const Ranks ranks(group, device());
      expect_messages(group, ranks);
      expect_equal_means(group, ranks);
      const std::optional<Communicator> pair = group.subgroup({size - 1, 0});
      if (pair) {
        const at::Tensor tensor = ranks.own(4);
        pair->all_reduce(tensor).wait();
        EXPECT_TRUE(torch::equal(tensor, ranks.of(0, 4) + ranks.of(size - 1, 4)));
      }
      group.barrier();
    });
  }
};

TEST_F(GpuCommunicatorTest, NcclWithOneRank) {
  const Communicator group = alone();
  EXPECT_EQ(group.backend(), "nccl");
  expect_every_operation(group, device());
  EXPECT_THAT(error_of([&] { group.send(torch::ones({3}, device()), 0); }), HasSubstr("another rank"));
  EXPECT_THAT(error_of([&] { group.all_reduce(torch::ones({3})); }), HasSubstr("needs tensors on"));
}

TEST_F(GpuCommunicatorTest, GlooBetweenTwoProcessesOnOneGpu) {
  run_processes(2, [&](World& world) {
    const Communicator& group = world.communicator();
    EXPECT_EQ(group.backend(), "gloo");
    expect_every_operation(group, device());
  });
}

TEST_F(GpuCommunicatorTest, OverNcclTwoRanks) { expect_every_operation_over_nccl(2); }

TEST_F(GpuCommunicatorTest, OverNcclFourRanks) { expect_every_operation_over_nccl(4); }

// One of them is told so; the other one that it has left.
TEST_F(GpuCommunicatorTest, OverNcclTwoRanksWithoutTheSwitchAreRefused) {
  test::run_rank_processes(2, [&](const RankMap& map) {
    std::string text;
    try {
      Communicator::connect(map, nccl_options(std::chrono::seconds(60)));
    } catch (const Error& error) {
      text = error.what();
    }
    EXPECT_THAT(text, testing::AnyOf(HasSubstr("two ranks on one device"), HasSubstr("died or left")));
  });
}

// Gloo hands the address to the network, which cannot read it.
TEST_F(GpuCommunicatorTest, GlooRefusesToSendFromAGpu) {
  run_processes(2, [&](World& world) {
    const Communicator& group = world.communicator();
    const at::Tensor tensor = torch::ones({3}, device());
    EXPECT_THAT(error_of([&] { group.send(tensor, 1 - group.rank()); }), HasSubstr("on the CPU"));
    EXPECT_THAT(error_of([&] { group.recv(tensor, 1 - group.rank()); }), HasSubstr("on the CPU"));
    group.barrier();
  });
}

}  // namespace
}  // namespace lockstep
