// Arguments that Communicator rejects, on a fake group: no peer is needed.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/c10d.h>
#include <lockstep/communicator.h>
#include <lockstep/error.h>
#include <torch/torch.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

namespace lockstep {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

Communicator fake_group() {
  CommunicatorOptions options;
  options.backend = "fake";
  return make_communicator(nullptr, 1, 4, options);
}

#define EXPECT_REFUSED(statement, text) \
  EXPECT_THAT([&] { statement; }, ThrowsMessage<ConfigError>(HasSubstr(text)))

TEST(ArgumentCheckTest, EveryMessageNamesOperationRankAndValues) {
  const Communicator group = fake_group();
  EXPECT_REFUSED(group.all_reduce(at::Tensor()), "[comm] all_reduce on rank 1 of 4: tensor is undefined");
  EXPECT_REFUSED(group.broadcast(torch::zeros({2, 3}).t()),
                 "pass tensor.contiguous(): sizes [3, 2], strides [1, 3]");
  EXPECT_REFUSED(group.all_reduce(torch::zeros({2}).to_sparse()),
                 "tensor is not a dense tensor: layout Sparse");
}

TEST(ArgumentCheckTest, Dtypes) {
  const Communicator group = fake_group();
  EXPECT_REFUSED(group.all_reduce(torch::zeros({2}, at::kLong), ReduceOp::kMean),
                 "kMean needs a floating-point tensor: tensor is Long");
  EXPECT_REFUSED(group.all_reduce(torch::zeros({2}, at::kBool)), "cannot be reduced: tensor is Bool");
  EXPECT_REFUSED(group.reduce_scatter(torch::zeros({2}, at::kShort), torch::zeros({8}, at::kShort)),
                 "cannot be reduced: input is Short");
  EXPECT_REFUSED(group.all_reduce(torch::zeros({2}, at::kComplexFloat), ReduceOp::kMax),
                 "complex tensors are reduced by kSum or kMean only: tensor is ComplexFloat");
  EXPECT_REFUSED(group.reduce_scatter(torch::zeros({2}, at::kComplexDouble),
                                      torch::zeros({8}, at::kComplexDouble), ReduceOp::kProduct),
                 "complex tensors are reduced by kSum or kMean only: input is ComplexDouble");
  EXPECT_REFUSED(group.all_reduce(torch::zeros({2}, at::kComplexHalf)),
                 "cannot be reduced: tensor is ComplexHalf");
  EXPECT_REFUSED(group.broadcast(torch::zeros({2}, at::kComplexFloat).conj()),
                 "tensor is a conjugate view, pass tensor.resolve_conj()");
  EXPECT_REFUSED(group.all_gather(torch::zeros({8}), torch::zeros({2}, at::kDouble)),
                 "dtypes differ: output is Float, input is Double");
}

TEST(ArgumentCheckTest, Blocks) {
  const Communicator group = fake_group();
  EXPECT_REFUSED(group.all_gather(torch::zeros({7}), torch::zeros({2})),
                 "output must hold 4 blocks of input: 7 elements against 2 in [2]");
  EXPECT_REFUSED(group.reduce_scatter(torch::zeros({3}), torch::zeros({8})),
                 "input must hold 4 blocks of output");
  EXPECT_REFUSED(group.gather(torch::zeros({2}), torch::zeros({2}), 1), "output must hold 4 blocks of input");
  EXPECT_REFUSED(group.scatter(torch::zeros({2}), at::Tensor(), 1), "input is undefined");
  EXPECT_REFUSED(group.all_to_all(torch::zeros({6}), torch::zeros({6})),
                 "must be 4 equal blocks each: 6 and 6");
}

TEST(ArgumentCheckTest, RanksAndRoots) {
  const Communicator group = fake_group();
  EXPECT_REFUSED(group.broadcast(torch::zeros({1}), 4), "root is not a rank of the group: 4");
  EXPECT_REFUSED(group.broadcast_bytes("x", -1), "root is not a rank of the group: -1");
  EXPECT_REFUSED(group.send(torch::zeros({1}), 1), "destination is not another rank of the group: 1");
  EXPECT_REFUSED(group.recv(torch::zeros({1}), 9), "source is not another rank of the group: 9");
  EXPECT_REFUSED(group.subgroup({0, 0}), "ranks must be distinct ranks of the group: [0, 0]");
  EXPECT_REFUSED(group.subgroup({}), "ranks must be distinct");
  EXPECT_REFUSED(group.subgroup({0, 4}), "[0, 4]");
  EXPECT_REFUSED(make_communicator(nullptr, 2, 2), "rank is not one of the group's: rank 2, size 2");
}

// A device that is not the CPU, and needs no GPU.
TEST(ArgumentCheckTest, GlooPassesMessagesOfTheCpuOnly) {
  CommunicatorOptions options;
  options.backend = "gloo";
  const Communicator group = make_communicator(c10::make_intrusive<c10d::HashStore>(), 0, 1, options);
  const at::Tensor elsewhere = torch::empty({3}, at::kMeta);
  EXPECT_REFUSED(group.send(elsewhere, 1),
                 "backend gloo passes messages on the CPU only, pass tensor.cpu(): tensor is on meta");
  EXPECT_REFUSED(group.recv(elsewhere, 1), "tensor is on meta");
}

TEST(ArgumentCheckTest, BackendNames) {
  CommunicatorOptions options;
  options.backend = "glo";
  EXPECT_REFUSED(make_communicator(nullptr, 0, 1, options),
                 "backend is not one of auto, gloo, nccl, mpi, shm, fake: 'glo'");
  options.backend = "nccl";
  EXPECT_REFUSED(make_communicator(nullptr, 0, 1, options), "backend nccl needs a CUDA device for rank 0");
}

TEST(FakeGroupTest, OtherRanksHaveNothingToSay) {
  const Communicator group = fake_group();
  EXPECT_EQ(group.backend(), "fake");
  at::Tensor tensor = torch::arange(4, at::kFloat);
  group.all_reduce(tensor, ReduceOp::kMean).wait();
  EXPECT_TRUE(torch::equal(tensor, torch::arange(4, at::kFloat)));
  at::Tensor all = torch::empty({4, 4});
  group.all_gather(all, tensor).wait();
  EXPECT_TRUE(torch::equal(all, tensor.repeat({4, 1})));
  at::Tensor block = torch::empty({1});
  group.reduce_scatter(block, tensor).wait();
  EXPECT_EQ(block.item<float>(), 1);
  EXPECT_EQ(group.all_gather_bytes("abc"), std::vector<std::string>(4, "abc"));
  EXPECT_EQ(group.subgroup({1, 3})->size(), 2);
  group.barrier();
}

TEST(SingleGroupTest, NeedsNoBackend) {
  const Communicator group;
  EXPECT_EQ(group.size(), 1);
  EXPECT_EQ(group.backend(), "none");
  EXPECT_EQ(backend_of(group), nullptr);
  at::Tensor tensor = torch::ones({3});
  Work work = group.all_reduce(tensor, ReduceOp::kMean);
  EXPECT_TRUE(work.done());
  work.wait();
  EXPECT_TRUE(torch::equal(tensor, torch::ones({3})));
  Work nothing;
  EXPECT_TRUE(nothing.done());
  nothing.wait();
}

#undef EXPECT_REFUSED

}  // namespace
}  // namespace lockstep
