#include "exported/segments.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/error.h>
#include <lockstep/exported_model.h>
#include <lockstep/track.h>
#include <torch/torch.h>

#include <string>
#include <vector>

#include "exported/archive.h"
#include "exported/executable.h"
#include "support/formula.h"
#include "support/golden.h"
#include "train/deepspeed/flops_profiler.h"
#include "train/measured_memory.h"
#include "train/model_graph.h"

namespace lockstep::exported {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::IsSupersetOf;
using ::testing::ThrowsMessage;

Program program_of(const std::string& name) { return read_archive(test::exported_file(name)).program; }

std::vector<std::string> segments_of(const std::string& name, const std::string& pattern) {
  const Program program = program_of(name);
  const Executable executable(
      program, {.shard = calls_of(program, modules_matching(program, pattern)), .recompute = {}});
  std::vector<std::string> paths;
  for (const Executable::Segment& segment : executable.segments()) paths.push_back(segment.path);
  return paths;
}

// The names of the parameters of each unit.
std::vector<std::vector<std::string>> unit_parameters(ExportedModelImpl& model) {
  std::vector<std::vector<std::string>> units;
  for (const parallel::UnitSource::Owned& owned : model.units()) {
    std::vector<std::string>& names = units.emplace_back();
    for (const auto& item : model.named_parameters()) {
      for (const at::Tensor& parameter : owned.parameters) {
        if (parameter.is_same(item.value())) names.push_back(item.key());
      }
    }
  }
  return units;
}

TEST(SegmentsTest, PatternsSelectPathsOfModules) {
  const Program blocks = program_of("blocks");
  EXPECT_THAT(modules_matching(blocks, "blocks.*"), ElementsAre("blocks.0", "blocks.1", "blocks.2"));
  EXPECT_THAT(modules_matching(blocks, "blocks.1"), ElementsAre("blocks.1"));
  EXPECT_THAT(modules_matching(blocks, "blocks.[02].norm,head"),
              ElementsAre("blocks.0.norm", "blocks.2.norm", "head"));
  // The outer one of modules inside of each other.
  EXPECT_THAT(modules_matching(blocks, "blocks.*.norm,blocks.0"),
              ElementsAre("blocks.0", "blocks.1.norm", "blocks.2.norm"));
  EXPECT_THAT(modules_matching(blocks, ""), IsEmpty());
}

TEST(SegmentsTest, AutoSelectsTheOutermostRepeatedBlocks) {
  EXPECT_THAT(modules_matching(program_of("blocks"), "auto"),
              ElementsAre("blocks.0", "blocks.1", "blocks.2"));
  EXPECT_THAT(modules_matching(program_of("odd"), "auto"), ElementsAre("changing.0", "changing.1"));
  // Without blocks the layers of a class.
  EXPECT_THAT(modules_matching(program_of("net"), "auto"), ElementsAre("layers.0", "head"));
  EXPECT_THAT(modules_matching(program_of("random"), "auto"), IsEmpty());
}

TEST(SegmentsTest, APatternThatMatchesNothingListsThePaths) {
  EXPECT_THAT([] { modules_matching(program_of("net"), "layers.*,tail"); },
              ThrowsMessage<ProgramError>("'tail' matches no module; its modules are: layers, layers.0, "
                                          "layers.1, layers.2, layers.3, head"));
  ExportedModel model(test::exported_file("net"));
  EXPECT_THAT([&] { model->shard_by("block.*"); },
              ThrowsMessage<ConfigError>(AllOf(HasSubstr("net.pt2' by 'block.*' into modules"),
                                               HasSubstr("'block.*' matches no module"))));
  ExportedModel random(test::exported_file("random"));
  EXPECT_THAT([&] { random->recompute_by("auto"); },
              ThrowsMessage<ConfigError>(HasSubstr("no class of its modules occurs several times")));
}

TEST(SegmentsTest, TheNodesOfACallAreOneSegment) {
  EXPECT_THAT(segments_of("blocks", "blocks.*"), ElementsAre("blocks.0", "blocks.1", "blocks.2"));
  EXPECT_THAT(segments_of("blocks", "blocks.*.drop"),
              ElementsAre("blocks.0.drop", "blocks.1.drop", "blocks.2.drop"));
  // Each call of a module is a segment of its own, and regions have segments too.
  EXPECT_THAT(segments_of("odd", "shared,inside.*"), ElementsAre("shared", "shared", "inside.0", "inside.1"));
  EXPECT_THAT(segments_of("odd", ""), IsEmpty());
}

TEST(SegmentsTest, AUnitHasTheParametersThatOnlyItsSegmentUses) {
  ExportedModel blocks(test::exported_file("blocks"));
  const auto of_block = [](const std::string& name) {
    return std::vector<std::string>{name + ".grow.weight", name + ".grow.bias",     name + ".norm.weight",
                                    name + ".norm.bias",   name + ".shrink.weight", name + ".shrink.bias"};
  };
  const auto three = ElementsAre(of_block("blocks.0"), of_block("blocks.1"), of_block("blocks.2"));
  EXPECT_THAT(unit_parameters(*blocks), three);
  // The tied weight of embed and head has two segments.
  blocks->shard_by("*,blocks.*");
  EXPECT_THAT(unit_parameters(*blocks), three);
  const auto copy = std::dynamic_pointer_cast<ExportedModelImpl>(blocks->clone());
  EXPECT_THAT(unit_parameters(*copy), three);
  blocks->shard_by("");
  EXPECT_THAT(unit_parameters(*blocks), IsEmpty());
  ExportedModel odd(test::exported_file("odd"));
  odd->shard_by("shared,inside.1");
  EXPECT_THAT(unit_parameters(*odd),
              ElementsAre(std::vector<std::string>{"inside.1.weight", "inside.1.bias"}));
}

TEST(SegmentsTest, ModulesOfPythonAreModules) {
  ExportedModel model(test::exported_file("net"));
  std::vector<std::string> modules;
  for (const auto& item : model->named_modules()) modules.push_back(item.key() + ":" + item.value()->name());
  EXPECT_THAT(modules,
              ElementsAre(":ExportedModel", "layers:Sequential", "layers.0:Linear", "layers.1:BatchNorm1d",
                          "layers.2:ReLU", "layers.3:Dropout", "head:Linear"));
}

TEST(SegmentsTest, ReportsAndProfilesHaveTheModulesOfPython) {
  ExportedModel model(test::exported_file("blocks"));
  std::vector<std::string> nodes;
  for (const GraphNode& node : train::model_graph(*model)) {
    nodes.push_back(node.name + ":" + node.kind + ":" + std::to_string(node.parameters));
  }
  EXPECT_THAT(nodes, IsSupersetOf({"model/blocks/0:Block:0", "model/blocks/0/grow:Linear:40",
                                   "model/blocks/2/drop:Dropout:0", "model/embed:Linear:16"}));
  deepspeed::ModelProfile profile(*model);
  {
    const deepspeed::OperationRecorder recorder(at::kCPU, profile);
    model->forward(torch::ones({6, 4}));
  }
  std::vector<std::string> parts;
  for (const deepspeed::ModelProfile::Part& part : profile.parts()) {
    parts.push_back(part.name + ":" + part.type + ":" + std::to_string(part.cost.macs) + ":" +
                    std::to_string(part.cost.flops));
  }
  // relu_ and the sum of a block use no parameter, and neither does the count of batches of a norm.
  EXPECT_THAT(parts, IsSupersetOf({"blocks.1:Block:384:" + std::to_string(2 * 384 + 6 * (5 * 8 + 8 + 4) + 1),
                                   std::string("blocks.1.grow:Linear:192:384"),
                                   "blocks.1.norm:BatchNorm1d:0:" + std::to_string(6 * 5 * 8 + 1)}));
}

// Everything that training changes, after three steps of two micro batches.
std::vector<at::Tensor> trained(ExportedModel& model, std::vector<double>* losses = nullptr) {
  test::set_parameters(*model);
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
  torch::manual_seed(4);
  for (int step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    const at::Tensor first = model->forward(test::formula({6, 4}, step)).square().mean();
    const at::Tensor second = model->forward(test::formula({5, 4}, 10 + step)).square().mean();
    (first + second).backward();
    optimizer.step();
    if (losses != nullptr) losses->push_back(first.item<double>());
  }
  std::vector<at::Tensor> state = model->parameters();
  for (const at::Tensor& buffer : model->buffers()) state.push_back(buffer);
  state.push_back(torch::rand({4}));  // the random numbers go on alike
  return state;
}

void expect_bits_of(const std::vector<at::Tensor>& actual, const std::vector<at::Tensor>& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) EXPECT_TRUE(test::same_bits(actual[i], expected[i])) << i;
}

// Dropout draws the same again, and running statistics and the count of batches change once.
TEST(SegmentsTest, RecomputingGivesTheBitsOfARunWithout) {
  ExportedModel plain(test::exported_file("blocks"));
  std::vector<double> losses;
  const std::vector<at::Tensor> expected = trained(plain, &losses);
  EXPECT_EQ(plain->named_buffers()["blocks.1.norm.num_batches_tracked"].item<int64_t>(), 6);
  for (const char* const pattern : {"auto", "blocks.*", "blocks.*.*", "blocks.0,head,blocks.2.shrink"}) {
    SCOPED_TRACE(pattern);
    ExportedModel model(test::exported_file("blocks"));
    model->recompute_by(pattern);
    std::vector<double> own;
    expect_bits_of(trained(model, &own), expected);
    EXPECT_EQ(own, losses);
  }
  ExportedModel by_unit(test::exported_file("blocks"));
  set_activation_checkpointing(*by_unit);
  expect_bits_of(trained(by_unit), expected);
}

TEST(SegmentsTest, RecomputingKeepsTheInputsOfSegmentsAlone) {
  const auto kept = [](const char* pattern) {
    ExportedModel model(test::exported_file("blocks"));
    model->recompute_by(pattern);
    const at::Tensor input = torch::ones({64, 4});
    model->forward(input);  // what is allocated once
    const train::CountedMemory memory;
    const at::Tensor output = model->forward(input);
    return memory.live_bytes();
  };
  // Of a block the results of grow, batch norm and dropout, and its mask, instead of random numbers' state.
  EXPECT_LT(kept("blocks.*") + 4096, kept(""));
}

TEST(SegmentsTest, AGraphOutlivesTheModel) {
  at::Tensor weight;
  at::Tensor loss;
  {
    ExportedModel model(test::exported_file("blocks"));
    model->recompute_by("auto");
    weight = model->named_parameters()["blocks.0.grow.weight"];
    loss = model->forward(test::formula({6, 4}, 1)).square().mean();
  }
  loss.backward();
  EXPECT_TRUE(weight.grad().defined());
}

TEST(SegmentsTest, RefusesToRecomputeWhatChangesItsInput) {
  ExportedModel model(test::exported_file("odd"));
  EXPECT_THAT([&] { model->recompute_by("changing.*"); },
              ThrowsMessage<ConfigError>(
                  AllOf(HasSubstr("its module 'changing.0' cannot compute its activations again"),
                        HasSubstr("torch.ops.aten.relu_.default at make_golden.py:"),
                        HasSubstr("changes a value in place that comes from outside of it"))));
  // The model stays as it was.
  EXPECT_NO_THROW(model->forward(torch::ones({4, 3})));
  EXPECT_NO_THROW(model->recompute_by("inside.*"));
  ExportedModel plain(test::exported_file("odd"));
  const at::Tensor input = test::formula({4, 3}, 2);
  for (ExportedModel* each : {&model, &plain}) (*each)->forward(input).sum().backward();
  for (size_t i = 0; i < plain->parameters().size(); ++i) {
    EXPECT_TRUE(test::same_bits(model->parameters()[i].grad(), plain->parameters()[i].grad())) << i;
  }
}

TEST(SegmentsTest, ExampleInputsHaveTheSizesOfTheExport) {
  ExportedModel model(test::exported_file("pair"));
  const auto shapes = [](const std::vector<c10::IValue>& inputs) {
    std::vector<std::vector<int64_t>> result;
    for (const c10::IValue& input : inputs) result.push_back(input.toTensor().sizes().vec());
    return result;
  };
  using Shape = std::vector<int64_t>;
  EXPECT_THAT(shapes(model->example_inputs()), ElementsAre(Shape{4, 3}, Shape{8}, Shape{}));
  EXPECT_THAT(shapes(model->example_inputs(7)), ElementsAre(Shape{7, 3}, Shape{14}, Shape{}));
  EXPECT_NO_THROW(model->run(model->example_inputs(7)));
}

}  // namespace
}  // namespace lockstep::exported
