// A divided model's checkpoint on another number of ranks: how many bytes each of them reads.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/optim.h>
#include <lockstep/sharded.h>
#include <torch/torch.h>

#include "checkpoint/reader.h"
#include "checkpoint/store.h"
#include "parallel/model_snapshot.h"
#include "parallel/save_shards.h"
#include "support/config_error.h"
#include "support/formula.h"
#include "support/group_case.h"
#include "support/temporary_folder.h"
#include "train/measured_memory.h"

namespace lockstep {
namespace {

using test::formula;
using test::on_one_host;
using test::run_group;

// A model on one rank, divided at this stage; its optimizer keeps two tensors a parameter.
struct DividedTraining {
  using Unit = Sharded<torch::nn::LinearImpl>;

  static torch::nn::Sequential make_net() {
    return torch::nn::Sequential(Unit(64, 64), torch::nn::Tanh(), Unit(64, 64), torch::nn::Tanh(),
                                 torch::nn::Linear(64, 64));
  }

  DividedTraining(const Communicator& group, int stage, c10::ScalarType dtype)
      : net(make_net()), optimizer(net->parameters(), torch::optim::AdamOptions(0.01)) {
    net->to(dtype);
    test::set_parameters(*net);
    model = std::make_unique<ShardedModel>(
        net.ptr(), optimizer, group,
        ShardedOptions{.zero = {.stage = stage, .bucket_cap_bytes = 10'000, .persistence_threshold = 65}});
  }

  void step(c10::ScalarType dtype) {
    model->zero_grad();
    model->prepare_forward();
    net->forward(formula({2, 64}, model->communicator().rank()).to(dtype)).square().mean().backward();
    model->step();
  }

  // Of all that this rank owns.
  int64_t owned_bytes() const {
    int64_t bytes = 0;
    const auto add = [&](const std::vector<ShardedModel::Part>& parts) {
      for (const auto& part : parts) bytes += static_cast<int64_t>(part.data.nbytes());
    };
    add(model->parameter_parts());
    if (model->has_masters()) add(model->master_parts());
    add(model->optimizer_parts().parts);
    return bytes;
  }

  torch::nn::Sequential net;
  torch::optim::Adam optimizer;
  std::unique_ptr<ShardedModel> model;
};

// Returns the checkpoint's folder.
std::filesystem::path save(const std::filesystem::path& folder, c10::ScalarType dtype, int stage = 3,
                           int ranks = 3) {
  std::filesystem::path saved;
  run_group(on_one_host(ranks), [&](Communicator& group) {
    DividedTraining training(group, stage, dtype);
    training.step(dtype);
    checkpoint::Snapshot snapshot;
    snapshot.step = 1;
    snapshot.world_size = group.size();
    parallel::add_shards(snapshot, *training.net, *training.model, group.rank() == 0);
    std::unique_ptr<checkpoint::Store> store;
    if (group.rank() == 0) store = std::make_unique<checkpoint::Store>(folder);
    const checkpoint::Entry entry = parallel::save_shards(group, store.get(), snapshot);
    if (group.rank() == 0) saved = entry.path;
  });
  return saved;
}

int64_t tensor_bytes(const checkpoint::Reader& reader) {
  int64_t bytes = 0;
  for (const auto& [name, tensor] : reader.manifest().tensors) {
    bytes += tensor.numel() * static_cast<int64_t>(c10::elementSize(tensor.dtype));
  }
  return bytes;
}

class DividedLoadTest : public testing::TestWithParam<c10::ScalarType> {};

TEST_P(DividedLoadTest, EachRankReadsItsRangesOnly) {
  const test::TemporaryFolder folder("/dev/shm");
  const std::filesystem::path saved = save(folder.path(), GetParam());
  const auto manifest_bytes = static_cast<int64_t>(std::filesystem::file_size(saved / "manifest.json"));
  for (const int stage : {1, 2, 3}) {
    for (const int ranks : {1, 2, 3, 4, 5}) {
      run_group(on_one_host(ranks), [&](Communicator& group) {
        SCOPED_TRACE(testing::Message()
                     << "stage " << stage << " on " << ranks << " ranks, rank " << group.rank());
        DividedTraining training(group, stage, GetParam());
        const checkpoint::Reader reader(saved);
        ASSERT_EQ(reader.bytes_read(), manifest_bytes);
        parallel::restore_weight_shards(reader, *training.net, *training.model);
        parallel::restore_optimizer_shards(reader, *training.model);
        const int64_t read = reader.bytes_read() - manifest_bytes;
        EXPECT_EQ(read, training.owned_bytes());
        const int64_t everything = tensor_bytes(reader);
        EXPECT_LE(read, everything / ranks + everything / 10) << "an equal share but for padding";
        at::Tensor of_all = torch::empty({ranks}, at::kLong);
        group.all_gather(of_all, torch::full({1}, read, at::kLong)).wait();
        EXPECT_EQ(of_all.sum().item<int64_t>(), everything) << "nothing twice, nothing left out";
      });
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Dtypes, DividedLoadTest, testing::Values(at::kFloat, at::kBFloat16),
                         [](const auto& info) { return std::string(c10::toString(info.param)); });

// Between a model that every rank holds whole, whose optimizer keeps 16 bit, and one that is
// divided, which has float32 masters and a float32 state.
class SixteenBitLoadTest : public testing::TestWithParam<std::tuple<c10::ScalarType, int, int>> {
 protected:
  c10::ScalarType dtype() const { return std::get<0>(GetParam()); }
  int stage() const { return std::get<1>(GetParam()); }
  int ranks() const { return std::get<2>(GetParam()); }

  // As the trainer has it at stage 0.
  struct WholeTraining {
    explicit WholeTraining(c10::ScalarType dtype) {
      net->to(dtype);
      test::set_parameters(*net);
    }
    torch::nn::Sequential net = DividedTraining::make_net();
    // The usual eps is 0 in float16.
    torch::optim::Adam optimizer{net->parameters(), torch::optim::AdamOptions(0.01).eps(1e-3)};
  };

  test::TemporaryFolder folder_{"/dev/shm"};
};

TEST_P(SixteenBitLoadTest, AWholeStateBecomesADividedOne) {
  WholeTraining whole(dtype());
  whole.net->forward(formula({2, 64}, 0).to(dtype())).square().mean().backward();
  whole.optimizer.step();
  checkpoint::Snapshot snapshot{.step = 1};
  parallel::add_weights(snapshot, *whole.net);
  parallel::add_optimizer(snapshot, *whole.net, whole.optimizer);
  const std::filesystem::path saved = checkpoint::Store(folder_.path()).save(snapshot).path;

  run_group(on_one_host(ranks()), [&](Communicator& group) {
    DividedTraining training(group, stage(), dtype());
    const checkpoint::Reader reader(saved);
    parallel::restore_weight_shards(reader, *training.net, *training.model);
    parallel::restore_optimizer_shards(reader, *training.model);
    const auto expect_parts = [&](const std::vector<ShardedModel::Part>& parts, const std::string& prefix) {
      for (const ShardedModel::Part& part : parts) {
        const at::Tensor expected =
            reader.read(prefix + part.name).view(-1).narrow(0, part.first, part.data.numel());
        EXPECT_EQ(part.data.scalar_type(), at::kFloat);
        EXPECT_TRUE(torch::equal(part.data, expected.to(at::kFloat))) << part.name;
      }
    };
    expect_parts(training.model->master_parts(), "model.");
    const ShardedModel::OptimizerParts optimizer = training.model->optimizer_parts();
    EXPECT_FALSE(optimizer.parts.empty());
    expect_parts(optimizer.parts, "lockstep/optimizer/");
    EXPECT_EQ(Json::parse(optimizer.values), reader.metadata().at("optimizer"));
    training.step(dtype());
  });
}

TEST_P(SixteenBitLoadTest, ADividedStateBecomesAWholeOne) {
  const std::filesystem::path saved = save(folder_.path(), dtype(), stage(), ranks());
  const checkpoint::Reader reader(saved);
  WholeTraining whole(dtype());
  parallel::restore_weights(reader, *whole.net);
  parallel::restore_optimizer(reader, *whole.net, whole.optimizer);
  for (const auto& item : whole.net->named_parameters()) {
    EXPECT_TRUE(torch::equal(item.value(), reader.read("model." + item.key()))) << item.key();
  }
  const OptimizerState state = optimizer_state(whole.optimizer, named_parameters(*whole.net));
  EXPECT_EQ(state.tensors.size(), 2 * whole.net->parameters().size());
  for (const auto& [name, tensor] : state.tensors) {
    const at::Tensor expected = reader.read("lockstep/optimizer/" + name);
    EXPECT_EQ(expected.scalar_type(), at::kFloat);
    EXPECT_EQ(tensor.scalar_type(), dtype());
    EXPECT_TRUE(torch::equal(tensor, expected.to(dtype()))) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Stages, SixteenBitLoadTest,
                         testing::Combine(testing::Values(at::kBFloat16, at::kHalf), testing::Values(1, 2, 3),
                                          testing::Values(1, 2, 3)),
                         [](const auto& info) {
                           return (std::get<0>(info.param) == at::kHalf ? "float16_stage"
                                                                        : "bfloat16_stage") +
                                  std::to_string(std::get<1>(info.param)) + "_ranks" +
                                  std::to_string(std::get<2>(info.param));
                         });

// What stands in for the weights of a file while names and shapes are compared has no memory,
// also where LibTorch fills new memory.
TEST(DividedLoad, ComparingWithAFileTakesNoMemory) {
  const test::TemporaryFolder folder("/dev/shm");
  const checkpoint::Reader reader(save(folder.path(), at::kFloat));
  at::globalContext().setDeterministicAlgorithms(true, false);
  const train::CountedMemory memory;
  const parallel::SavedWeights saved = parallel::saved_weights(reader);
  at::globalContext().setDeterministicAlgorithms(false, false);
  EXPECT_EQ(saved.tensors.size(), 6U);
  EXPECT_EQ(memory.peak_bytes(), 0);
}

// Stand-ins of one shape are not one tensor: the other model's parameter is missed.
TEST(DividedLoad, AnotherModelIsRefusedWhateverItsShapes) {
  const test::TemporaryFolder folder("/dev/shm");
  const checkpoint::Reader reader(save(folder.path(), at::kFloat));
  for (const int stage : {1, 3}) {
    using Unit = DividedTraining::Unit;
    torch::nn::Sequential net;
    for (int i = 0; i < 4; ++i) net->push_back(i == 3 ? "9" : std::to_string(2 * i), Unit(64, 64));
    torch::optim::Adam optimizer(net->parameters(), torch::optim::AdamOptions(0.01));
    ShardedModel model(net.ptr(), optimizer, Communicator(), ShardedOptions{.zero = {.stage = stage}});
    EXPECT_THAT(test::error_of([&] { parallel::restore_weight_shards(reader, *net, model); }),
                testing::HasSubstr("missing in the file: 9.weight"));
  }
}

}  // namespace
}  // namespace lockstep
