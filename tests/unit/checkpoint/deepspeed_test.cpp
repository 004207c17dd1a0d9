// Imports checkpoints that DeepSpeed 0.19.6 wrote (tests/fuzz/make_deepspeed_checkpoints.py). Broken,
// hostile or unsupported ones are errors with the reason. tests/peers/test_deepspeed_import.py imports
// checkpoints that it makes itself.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/json.h>
#include <torch/torch.h>

#include <filesystem>
#include <fstream>
#include <map>

#include "checkpoint/deepspeed/deepspeed_checkpoint.h"
#include "checkpoint/deepspeed/parameter_layout.h"
#include "checkpoint/deepspeed/shards.h"
#include "checkpoint/pickle.h"
#include "checkpoint/reader.h"
#include "checkpoint/safetensors.h"
#include "support/config_error.h"
#include "support/temporary_folder.h"
#include "unit/checkpoint/deepspeed_corpus.h"

namespace lockstep::checkpoint {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::map<std::string, at::Tensor> read_all(const DeepSpeedCheckpoint& checkpoint) {
  std::map<std::string, at::Tensor> tensors;
  for (const auto& tensor : checkpoint.tensors) {
    tensors[tensor.name] = tensor.read();
    EXPECT_EQ(static_cast<int64_t>(tensors[tensor.name].nbytes()), tensor.bytes) << tensor.name;
  }
  return tensors;
}

void import(const fs::path& path, const DeepSpeedImportOptions& options = {}) {
  read_all(open_deepspeed_checkpoint(path, options));
}

// A copy of a checkpoint to break.
class Copy {
 public:
  explicit Copy(const std::string& name) {
    fs::copy(corpus(name), path(), fs::copy_options::recursive | fs::copy_options::overwrite_existing);
  }
  const fs::path& path() const { return folder_.path(); }
  fs::path file(const std::string& name) const { return path() / kTag / name; }
  void write_latest(const std::string& text) const { std::ofstream(path() / "latest") << text; }
  std::string error() const {
    return test::error_of([&] { import(path()); });
  }

 private:
  test::TemporaryFolder folder_;
};

class DeepSpeedStageTest : public testing::TestWithParam<int> {};

TEST_P(DeepSpeedStageTest, WeightsMastersAndMomentsAreDeepSpeeds) {
  const fs::path folder = corpus("stage" + std::to_string(GetParam()));
  const DeepSpeedCheckpoint checkpoint = open_deepspeed_checkpoint(folder);
  const auto tensors = read_all(checkpoint);
  EXPECT_EQ(checkpoint.step, 3);
  EXPECT_EQ(checkpoint.ranks, 2);
  EXPECT_EQ(checkpoint.stage, GetParam());
  const checkpoint::SafetensorsFile expected(folder / "state.safetensors");
  ASSERT_FALSE(expected.names().empty());
  for (const std::string& name : expected.names()) {
    const size_t slash = name.find('/');
    const std::string kind = name.substr(0, slash);
    const std::string parameter = name.substr(slash + 1);
    const at::Tensor want = expected.read(name);
    if (kind != "master") {
      EXPECT_TRUE(at::equal(tensors.at("lockstep/optimizer/" + parameter + "/" + kind), want)) << name;
      continue;
    }
    const at::Tensor weight = tensors.at("model." + parameter);
    EXPECT_TRUE(at::equal(weight, want.to(weight.scalar_type()))) << name;
    const auto master = tensors.find("lockstep/master/" + parameter);
    EXPECT_EQ(master != tensors.end(), weight.scalar_type() != at::kFloat) << name;
    if (master != tensors.end()) EXPECT_TRUE(at::equal(master->second, want)) << name;
  }
}

TEST_P(DeepSpeedStageTest, TiedAndFrozenWeightsAndBuffersAreThere) {
  const auto tensors = read_all(open_deepspeed_checkpoint(corpus("stage" + std::to_string(GetParam()))));
  EXPECT_TRUE(at::equal(tensors.at("model.head.weight"), tensors.at("model.embed.weight")));
  EXPECT_EQ(tensors.at("model.frozen.weight").sizes(), (std::vector<int64_t>{5, 6}));
  EXPECT_GT(tensors.at("model.frozen.weight").to(at::kFloat).abs().min().item<float>(), 0);
  EXPECT_EQ(tensors.at("model.frozen.bias").sizes(), (std::vector<int64_t>{5}));
  EXPECT_EQ(tensors.at("model.seen").item<int64_t>(), 7);
  EXPECT_TRUE(at::equal(tensors.at("model.scale"), torch::tensor({1.5F, -2.0F, 0.25F})));
  EXPECT_EQ(tensors.count("lockstep/optimizer/frozen.weight/exp_avg"), 0U);
  EXPECT_EQ(tensors.count("lockstep/optimizer/head.weight/exp_avg"), 0U);
}

TEST_P(DeepSpeedStageTest, TheOptimizerHasItsClassGroupsAndSteps) {
  const auto checkpoint = open_deepspeed_checkpoint(corpus("stage" + std::to_string(GetParam())));
  const Json& optimizer = checkpoint.metadata.at("optimizer");
  EXPECT_EQ(optimizer.at("class"), "AdamW");
  ASSERT_EQ(optimizer.at("groups").size(), 2U);
  EXPECT_THAT(optimizer.at("groups")[0].at("parameters").get<std::vector<std::string>>(),
              ElementsAre("embed.weight", "middle.weight"));
  EXPECT_THAT(optimizer.at("groups")[1].at("parameters").get<std::vector<std::string>>(),
              ElementsAre("norm.weight", "norm.bias", "middle.bias"));
  const Json& options = optimizer.at("groups")[0].at("options");
  EXPECT_DOUBLE_EQ(options.at("lr").get<double>(), 0.01);
  EXPECT_DOUBLE_EQ(options.at("weight_decay").get<double>(), 0.01);
  EXPECT_EQ(options.at("betas"), (Json{0.9, 0.999}));
  EXPECT_DOUBLE_EQ(optimizer.at("groups")[1].at("options").at("weight_decay").get<double>(), 0);
  ASSERT_EQ(optimizer.at("state").size(), 5U);
  EXPECT_EQ(optimizer.at("state").at("embed.weight").at("step"), 3);
  EXPECT_EQ(optimizer.at("state").at("embed.weight").at("tensors"), (Json{"exp_avg", "exp_avg_sq"}));
}

TEST_P(DeepSpeedStageTest, WhatTheProgramSavedIsKeptOrNamed) {
  const auto checkpoint = open_deepspeed_checkpoint(corpus("stage" + std::to_string(GetParam())));
  EXPECT_EQ(checkpoint.metadata.at("deepspeed").at("client_state").at("epoch"), 3);
  EXPECT_EQ(checkpoint.metadata.at("deepspeed").at("version"), "0.19.6");
  EXPECT_EQ(checkpoint.metadata.at("deepspeed").at("config").at("zero_optimization").at("stage"), GetParam());
  EXPECT_THAT(checkpoint.left_behind, Contains(HasSubstr("when")));
  EXPECT_EQ(checkpoint.metadata.contains("scaler"), GetParam() == 2) << "float16";
}

TEST_P(DeepSpeedStageTest, ItIsWrittenAndReadAgain) {
  const test::TemporaryFolder folder;
  const auto checkpoint = open_deepspeed_checkpoint(corpus("stage" + std::to_string(GetParam())));
  const checkpoint::Reader reader(save_checkpoint(checkpoint, folder.path()));
  reader.verify();
  EXPECT_EQ(reader.step(), 3);
  for (const auto& [name, tensor] : read_all(checkpoint))
    EXPECT_TRUE(at::equal(reader.read(name), tensor)) << name;
}

INSTANTIATE_TEST_SUITE_P(Stages, DeepSpeedStageTest, testing::Values(0, 1, 2, 3));

TEST(DeepSpeedTest, WeightsAloneAndInFloat32) {
  const auto checkpoint =
      open_deepspeed_checkpoint(corpus("stage3"), {.weights_alone = true, .float32 = true});
  const checkpoint::SafetensorsFile expected(corpus("stage3") / "state.safetensors");
  const auto tensors = read_all(checkpoint);
  EXPECT_TRUE(at::equal(tensors.at("model.embed.weight"), expected.read("master/embed.weight")));
  EXPECT_EQ(tensors.at("model.frozen.weight").scalar_type(), at::kFloat);
  for (const auto& entry : tensors) EXPECT_TRUE(entry.first.starts_with("model.")) << entry.first;
  EXPECT_FALSE(checkpoint.metadata.contains("optimizer"));
}

TEST(DeepSpeedTest, TheLossScaleGoesOn) {
  const Json scaler = open_deepspeed_checkpoint(corpus("stage2")).metadata.at("scaler");
  EXPECT_EQ(scaler.at("deepspeed").at("cur_iter"), 3);
  EXPECT_EQ(scaler.at("scale"), scaler.at("deepspeed").at("cur_scale"));
  EXPECT_EQ(scaler.at("growth_interval"), 1000);
}

TEST(DeepSpeedTest, AFolderIsKnownByWhatIsInIt) {
  EXPECT_TRUE(is_deepspeed_folder(corpus("stage1")));
  EXPECT_TRUE(is_deepspeed_folder(corpus("stage1") / kTag));
  EXPECT_FALSE(is_deepspeed_folder(corpus("..")));
  EXPECT_EQ(find_deepspeed_files(corpus("stage3"), "").optimizer.size(), 2U);
  EXPECT_EQ(find_deepspeed_files(corpus("stage3"), kTag).model.size(), 2U);
  EXPECT_EQ(find_deepspeed_files(corpus("stage1") / kTag, "").model.size(), 1U);
}

TEST(DeepSpeedTest, LatestLeadsToNoOtherFolder) {
  const Copy copy("stage1");
  for (const std::string text : {"../stage1", "..", ".", "", "/tmp", "a/b"}) {
    copy.write_latest(text);
    EXPECT_THAT(copy.error(), HasSubstr("latest")) << text;
  }
  copy.write_latest("global_step4\n");
  EXPECT_THAT(copy.error(), AllOf(HasSubstr("global_step4"), HasSubstr("latest")));
  copy.write_latest(std::string(100'000, 'a'));
  EXPECT_THAT(copy.error(), HasSubstr("latest"));
  copy.write_latest("global_step3\n");
  EXPECT_NO_THROW(import(copy.path()));
  fs::remove(copy.path() / "latest");
  EXPECT_THAT(copy.error(), AllOf(HasSubstr("latest"), HasSubstr("--tag")));
  EXPECT_NO_THROW(import(copy.path(), {.tag = kTag}));
  EXPECT_THAT(test::error_of([&] { import(copy.path(), {.tag = "../x"}); }), HasSubstr("--tag"));
}

TEST(DeepSpeedTest, AMissingFileIsNamed) {
  {
    const Copy copy("stage1");
    fs::remove(copy.file("zero_pp_rank_1_mp_rank_00_optim_states.pt"));
    EXPECT_THAT(copy.error(),
                AllOf(HasSubstr("zero_pp_rank_0"), HasSubstr("one of 2 files"), HasSubstr("1 are")));
    fs::remove(copy.file("zero_pp_rank_0_mp_rank_00_optim_states.pt"));
    EXPECT_THAT(copy.error(), AllOf(HasSubstr("mp_rank_00_model_states.pt"), HasSubstr("optim_states.pt")));
  }
  {
    const Copy copy("stage2");
    fs::remove(copy.file("zero_pp_rank_0_mp_rank_00_optim_states.pt"));
    EXPECT_THAT(copy.error(), AllOf(HasSubstr("rank 0 is missing"), HasSubstr("1 of at least 2")));
  }
  {
    const Copy copy("stage3");
    fs::remove(copy.file("zero_pp_rank_1_mp_rank_00_model_states.pt"));
    EXPECT_THAT(copy.error(), HasSubstr("1 files of the model and 2 of the optimizer"));
  }
  const Copy copy("stage1");
  fs::remove(copy.file("mp_rank_00_model_states.pt"));
  EXPECT_THAT(copy.error(), HasSubstr("mp_rank_00_model_states.pt"));
}

TEST(DeepSpeedTest, FilesOfAnotherSaveAreRefused) {
  const Copy copy("stage1");
  const std::string left_over = "zero_pp_rank_2_mp_rank_00_optim_states.pt";
  fs::copy(copy.file("zero_pp_rank_1_mp_rank_00_optim_states.pt"), copy.file(left_over));
  EXPECT_THAT(copy.error(), HasSubstr("another number of ranks"));
  fs::remove(copy.file(left_over));
  fs::copy(corpus("stage2") / kTag / "zero_pp_rank_1_mp_rank_00_optim_states.pt",
           copy.file("zero_pp_rank_1_mp_rank_00_optim_states.pt"), fs::copy_options::overwrite_existing);
  EXPECT_THAT(copy.error(), AllOf(HasSubstr("zero_pp_rank_1"), HasSubstr("another training")));
  fs::rename(copy.file("zero_pp_rank_1_mp_rank_00_optim_states.pt"),
             copy.file("bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt"));
  EXPECT_THAT(copy.error(), HasSubstr("two trainings"));
}

TEST(DeepSpeedTest, OtherKindsOfTrainingAreRefusedByName) {
  for (const auto& [file, kind] : std::map<std::string, std::string>{
           {"mp_rank_01_model_states.pt", "model or tensor parallel"},
           {"zero_pp_rank_0_mp_rank_01_optim_states.pt", "model or tensor parallel"},
           {"layer_00-model_states.pt", "pipeline"},
           {"layer_1_expert_0_mp_rank_00_model_states.pt", "mixture of experts"},
           {"expp_rank_0_mp_rank_00_optim_states.pt", "mixture of experts"}}) {
    const Copy copy("stage1");
    fs::copy(copy.file("mp_rank_00_model_states.pt"), copy.file(file));
    EXPECT_THAT(copy.error(), AllOf(HasSubstr(file), HasSubstr(kind)));
  }
}

TEST(DeepSpeedTest, ACutFileIsAnErrorWhereverItIsCut) {
  const Copy copy("stage3");
  for (const char* name :
       {"zero_pp_rank_1_mp_rank_00_model_states.pt", "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt"}) {
    const fs::path file = copy.file(name);
    for (auto size = static_cast<int64_t>(fs::file_size(file)) - 1; size >= 0; size -= 97) {
      fs::resize_file(file, static_cast<uintmax_t>(size));
      ASSERT_THAT(copy.error(), HasSubstr(name)) << size;
    }
    fs::copy(corpus("stage3") / kTag / name, file, fs::copy_options::overwrite_existing);
  }
}

TEST(FlatLayoutTest, GroupsAreCutAnywhere) {
  const auto parameters =
      layout_of_stage_1_and_2({{{"a", {3}}, {"b", {2, 2}}}, {{"c", {1}}}}, {{4, 2}, {3, 0}});
  ASSERT_EQ(parameters.size(), 3U);
  EXPECT_THAT(parameters[0].segments, ElementsAre(FlatSegment{0, 0, 0, 3}));
  EXPECT_THAT(parameters[1].segments, ElementsAre(FlatSegment{0, 0, 3, 1}, FlatSegment{1, 0, 0, 3}));
  EXPECT_THAT(parameters[2].segments, ElementsAre(FlatSegment{0, 1, 0, 1}));
  EXPECT_THROW(layout_of_stage_1_and_2({{{"a", {8}}}}, {{4}, {3}}), PickleError);
  EXPECT_THROW(layout_of_stage_1_and_2({{{"a", {3}}}}, {{4}, {4}}), PickleError);
  EXPECT_THROW(layout_of_stage_1_and_2({{{"a", {int64_t{1} << 61}}}}, {{4}}), PickleError);
}

TEST(FlatLayoutTest, PartsAreCutOneByOne) {
  const auto parameters = layout_of_stage_3({{{"a", {3}}, {"b", {4}}}, {{"c", {1}}}}, {{4, 1}, {4, 1}});
  EXPECT_THAT(parameters[0].segments, ElementsAre(FlatSegment{0, 0, 0, 2}, FlatSegment{1, 0, 0, 1}));
  EXPECT_THAT(parameters[1].segments, ElementsAre(FlatSegment{0, 0, 2, 2}, FlatSegment{1, 0, 2, 2}));
  EXPECT_THAT(parameters[2].segments, ElementsAre(FlatSegment{0, 1, 0, 1}));
  EXPECT_EQ(parameters[2].flat, 1U);
  EXPECT_THROW(layout_of_stage_3({{{"a", {3}}}}, {{2}, {3}}), PickleError);
  EXPECT_THROW(layout_of_stage_3({{{"a", {3}}}}, {{1}, {1}}), PickleError);
  EXPECT_THROW(layout_of_stage_3({{{"a", {3}}}}, {{5}, {5}}), PickleError);
}

using Shape = std::vector<int64_t>;

TEST(NameNumberedTest, ByShapeAndOrder) {
  const std::vector<ShapedName> model = {{"a", {2, 3}}, {"b", {3}}, {"c", {3, 3}}, {"d", {3}}};
  const auto names = name_numbered(model, {{0, 1}, {2, 3}}, {Shape{2, 3}, Shape{3, 3}, Shape{3}, Shape{3}});
  ASSERT_TRUE(names);
  EXPECT_THAT(*names, ElementsAre("a", "c", "b", "d"));
}

TEST(NameNumberedTest, UnknownShapesAndFrozenParametersWhereThereIsOneWay) {
  const std::vector<ShapedName> model = {{"a", {2}}, {"b", {3}}, {"c", {4}}};
  EXPECT_THAT(*name_numbered(model, {{0, 1, 2}}, {Shape{2}, std::nullopt, Shape{4}}),
              ElementsAre("a", "b", "c"));
  EXPECT_THAT(*name_numbered(model, {{0, 1}}, {Shape{2}, Shape{4}}), ElementsAre("a", "c"));
}

TEST(NameNumberedTest, NothingIsGuessed) {
  const std::vector<ShapedName> model = {{"a", {3}}, {"b", {3}}};
  EXPECT_FALSE(name_numbered(model, {{0}}, {Shape{3}})) << "one of them is frozen";
  EXPECT_FALSE(name_numbered(model, {{0}, {1}}, {Shape{3}, Shape{3}})) << "in either group";
  EXPECT_FALSE(name_numbered(model, {{0, 1}}, {Shape{3}, Shape{4}}));
  EXPECT_FALSE(name_numbered(model, {{0, 1, 2}}, {Shape{3}, Shape{3}, Shape{3}}));
}

}  // namespace
}  // namespace lockstep::checkpoint
