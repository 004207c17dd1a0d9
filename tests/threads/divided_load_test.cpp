// A divided model's checkpoint on another number of ranks: how many bytes each of them reads.

#include <gtest/gtest.h>
#include <lockstep/sharded.h>
#include <lockstep/sharded_model.h>
#include <torch/torch.h>

#include "checkpoint/reader.h"
#include "checkpoint/store.h"
#include "engine/save_together.h"
#include "engine/sharded_snapshot.h"
#include "support/formula.h"
#include "support/group_case.h"
#include "support/temporary_folder.h"

namespace lockstep {
namespace {

using test::formula;
using test::on_one_host;
using test::run_group;

// A model on one rank, divided at this stage; its optimizer keeps two tensors a parameter.
struct DividedTraining {
  using Unit = Sharded<torch::nn::LinearImpl>;

  DividedTraining(const Communicator& group, int stage, c10::ScalarType dtype)
      : net(Unit(64, 64), torch::nn::Tanh(), Unit(64, 64), torch::nn::Tanh(), torch::nn::Linear(64, 64)),
        optimizer(net->parameters(), torch::optim::AdamOptions(0.01)) {
    net->to(dtype);
    test::set_parameters(*net);
    model = std::make_unique<ShardedModel>(
        net.ptr(), optimizer, group,
        ShardedOptions{.stage = stage, .bucket_cap_bytes = 10'000, .persistence_threshold = 65});
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

// On three ranks at stage 3; returns the checkpoint's folder.
std::filesystem::path save(const std::filesystem::path& folder, c10::ScalarType dtype) {
  std::filesystem::path saved;
  run_group(on_one_host(3), [&](Communicator& group) {
    DividedTraining training(group, 3, dtype);
    training.step(dtype);
    checkpoint::Snapshot snapshot;
    snapshot.step = 1;
    snapshot.world_size = group.size();
    engine::add_parts(snapshot, *training.net, *training.model, group.rank() == 0);
    std::unique_ptr<checkpoint::Store> store;
    if (group.rank() == 0) store = std::make_unique<checkpoint::Store>(folder);
    const checkpoint::Entry entry = engine::save_together(group, store.get(), snapshot);
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
        engine::restore_weight_parts(reader, *training.net, *training.model);
        engine::restore_optimizer_parts(reader, *training.model);
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

}  // namespace
}  // namespace lockstep
