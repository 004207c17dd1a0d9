// An engine resumes from what `lockstep ckpt import` makes of checkpoints that DeepSpeed 0.19.6
// wrote (tests/fuzz/make_deepspeed_checkpoints.py): at each stage, on other numbers of ranks.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/deepspeed.h>
#include <torch/torch.h>

#include <lockstep/json.h>

#include "checkpoint/deepspeed/deepspeed_checkpoint.h"
#include "checkpoint/reader.h"
#include "checkpoint/safetensors.h"
#include "support/formula.h"
#include "support/golden.h"
#include "support/group_case.h"
#include "support/temporary_folder.h"

namespace lockstep {
namespace {

using checkpoint::Reader;
using checkpoint::SafetensorsFile;

// Another's weight under a name of its own.
struct BorrowedWeightImpl : torch::nn::Module {
  explicit BorrowedWeightImpl(const at::Tensor& other) : weight(register_parameter("weight", other)) {}
  at::Tensor forward(const at::Tensor& x) { return torch::linear(x, weight); }
  at::Tensor weight;
};
TORCH_MODULE(BorrowedWeight);

// Odd of tests/peers/programs/deepspeed_training.py, with other values.
struct OddImpl : torch::nn::Module {
  OddImpl()
      : embed(register_module("embed", torch::nn::Linear(torch::nn::LinearOptions(5, 7).bias(false)))),
        norm(register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({7})))),
        middle(register_module("middle", torch::nn::Linear(7, 6))),
        frozen(register_module("frozen", torch::nn::Linear(6, 5))),
        head(register_module("head", BorrowedWeight(embed->weight))) {
    register_buffer("seen", torch::zeros({}, torch::kLong));
    register_buffer("scale", torch::zeros({3}));
    for (at::Tensor& parameter : frozen->parameters()) parameter.set_requires_grad(false);
    test::set_parameters(*this);
  }
  at::Tensor forward(const at::Tensor& x) { return head(frozen(torch::relu(middle(norm(embed(x)))))); }
  torch::nn::Linear embed;
  torch::nn::LayerNorm norm;
  torch::nn::Linear middle, frozen;
  BorrowedWeight head;
};
TORCH_MODULE(Odd);

// Matrices decay, vectors do not.
torch::optim::AdamW optimizer_of(const Odd& net) {
  using torch::optim::AdamWOptions;
  const auto options = [](double decay) {
    return std::make_unique<AdamWOptions>(AdamWOptions(0.5).weight_decay(decay));
  };
  return torch::optim::AdamW(std::vector<torch::optim::OptimizerParamGroup>{
      {{net->embed->weight, net->middle->weight}, options(0.5)},
      {{net->norm->weight, net->norm->bias, net->middle->bias}, options(0)}});
}

struct ImportCase {
  int saved;          // DeepSpeed's stage
  std::string dtype;  // its section of the file
  int ranks;
};

class EngineImportTest : public testing::TestWithParam<int> {};

DeepSpeedConfig import_config(int stage, const std::string& dtype) {
  return DeepSpeedConfig::from_text("{train_micro_batch_size_per_gpu: 4, " + dtype +
                                        "zero_optimization: {stage: " + std::to_string(stage) +
                                        ", stage3_param_persistence_threshold: 0}}",
                                    "ds.json");
}

// What an engine saves right after it has loaded is what DeepSpeed said it had.
void expect_deepspeeds(const Reader& saved, const SafetensorsFile& state) {
  ASSERT_EQ(state.names().size(), 15U);
  for (const std::string& name : state.names()) {
    const size_t slash = name.find('/');
    const std::string kind = name.substr(0, slash);
    const std::string parameter = name.substr(slash + 1);
    const std::string master = "lockstep/master/" + parameter;
    const std::string own = kind != "master"    ? "lockstep/optimizer/" + parameter + "/" + kind
                            : saved.has(master) ? master
                                                : "model." + parameter;
    EXPECT_TRUE(at::equal(saved.read(own), state.read(name))) << name;
  }
}

TEST_P(EngineImportTest, GoesOnWithItsWeightsMomentsAndCounts) {
  const test::TemporaryFolder folder;
  for (const ImportCase& from :
       {ImportCase{0, "", 1}, ImportCase{1, "", 3}, ImportCase{2, "fp16: {enabled: true}, ", 2},
        ImportCase{3, "bf16: {enabled: true}, ", 2}}) {
    SCOPED_TRACE("DeepSpeed's stage " + std::to_string(from.saved));
    const std::string original =
        test::data_path("fuzz/deepspeed_checkpoint/stage" + std::to_string(from.saved));
    const std::filesystem::path imported = folder.path() / ("imported" + std::to_string(from.saved));
    const Reader source(
        checkpoint::save_checkpoint(checkpoint::open_deepspeed_checkpoint(original), imported));
    const test::GroupCase group_case{"shm", std::vector<int>(static_cast<size_t>(from.ranks), 0)};
    run_group(group_case, [&](Communicator& group) {
      Odd net;
      torch::optim::AdamW optimizer = optimizer_of(net);
      auto engine = initialize(net, import_config(GetParam(), from.dtype), group, &optimizer);
      const auto loaded = engine.load_checkpoint(imported);
      ASSERT_TRUE(loaded);
      EXPECT_EQ(Json::parse(loaded->client_state).at("epoch"), 3);
      EXPECT_EQ(engine.global_steps(), 3);
      EXPECT_EQ(engine.global_samples(), 3 * 4 * 2) << "of the two ranks that saved it";
      EXPECT_THAT(engine.get_lr(), testing::ElementsAre(0.01, 0.01));
      const Json* const scaler = source.metadata().find("scaler");
      EXPECT_EQ(engine.loss_scale(), scaler == nullptr ? 1.0 : scaler->value("scale", 1.0));
      EXPECT_EQ(net->named_buffers()["seen"].item<int64_t>(), 7);
      const Reader saved(engine.save_checkpoint(folder.path() / "again"));
      expect_deepspeeds(saved, SafetensorsFile(original + "/state.safetensors"));
      EXPECT_TRUE(at::equal(saved.read("model.frozen.weight"), source.read("model.frozen.weight")));
      group.barrier();
      const at::Tensor x = test::formula({4, 5}, 1).to(net->embed->weight.scalar_type());
      engine.backward(engine.forward(x).square().mean());
      engine.step();
      EXPECT_EQ(engine.global_steps(), 4);
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Stages, EngineImportTest, testing::Values(0, 1, 2, 3));

}  // namespace
}  // namespace lockstep
