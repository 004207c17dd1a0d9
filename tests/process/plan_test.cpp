// `lockstep plan` as a user runs it: bytes by hand, text and JSON, and what it refuses.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/error.h>
#include <torch/torch.h>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "checkpoint/weights.h"
#include "support/golden.h"
#include "support/process.h"
#include "support/temporary_folder.h"

namespace lockstep::test {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;

Finished plan(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), {program_path("lockstep"), "plan"});
  Process process(std::move(arguments));
  return finish(process, std::chrono::seconds(120));
}

// LUMI's model at its smallest: 5 717 416 parameters, as timm and torchvision count them.
std::vector<std::string> tiny_vit(const std::vector<std::string>& more) {
  std::vector<std::string> words = {"vit", "--model", "tiny", "--world", "8", "--zero", "0,1,2,3"};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

json plan_json(std::vector<std::string> arguments) {
  arguments.emplace_back("--json");
  const Finished result = plan(std::move(arguments));
  EXPECT_EQ(result.code, kExitSuccess) << result.errors;
  return json::parse(result.output);
}

// 4 bytes of a parameter, 4 of its gradient and 8 of Adam's: 91.48 MB whole.
TEST(PlanTest, TellsStageByStageWhatFits) {
  const Finished result = plan(tiny_vit({"--memory", "60MB", "--no-activations"}));
  EXPECT_EQ(result.code, kExitSuccess) << result.errors;
  EXPECT_EQ(result.errors, "");
  EXPECT_THAT(result.output, HasSubstr("vit --model tiny: 5717416 trained parameters, fp32, 8 rank(s), "
                                       "32 samples a rank, Adam\n"));
  EXPECT_THAT(result.output, ContainsRegex("\nstage +parameters +gradients +master +optimizer +buffers "
                                           "+activations +other +total +fits\n"));
  EXPECT_THAT(result.output, ContainsRegex("\n +0 +22.87 MB +22.87 MB +0 B +45.74 MB .* 91.48 MB +no\n"));
  EXPECT_THAT(result.output, ContainsRegex("\n +1 +22.87 MB +22.87 MB +0 B +5.72 MB .* 51.46 MB +yes\n"));
  EXPECT_THAT(result.output, ContainsRegex("\n +2 +22.87 MB +2.86 MB +0 B +5.72 MB .* yes\n"));
  EXPECT_THAT(result.output, ContainsRegex("\n +3 .* +2.86 MB +0 B +5.72 MB .* yes\n"));
  EXPECT_THAT(result.output, HasSubstr("Stage 1 is the first that fits into 60.00 MB: 51.46 MB a rank.\n"));
  EXPECT_THAT(result.output, HasSubstr("\nActivations are not measured: --no-activations.\n"));
  for (const char* stage : {"0", "1", "2", "3"}) {
    EXPECT_THAT(result.output, HasSubstr(std::string("\nBuckets at stage ") + stage + ":\n"));
  }
  EXPECT_THAT(result.output, ContainsRegex("float32 +5717416 +88 +714688 +always"));
  EXPECT_THAT(result.output, ContainsRegex("float32 +405504 +0 +50688 +when needed +12 +0 "
                                           "+encoder.layers.encoder_layer_11.mlp.3.weight and 2 more\n"));

  const Finished none = plan(tiny_vit({"--memory", "1MiB", "--no-activations"}));
  EXPECT_EQ(none.code, kExitSuccess) << none.errors;
  EXPECT_THAT(none.output, AllOf(HasSubstr("No stage of these fits into 1.05 MB: more ranks"),
                                 Not(ContainsRegex(" yes\n"))));
}

TEST(PlanTest, JsonHoldsTheSumsOfTheFormulas) {
  const json answer = plan_json(tiny_vit({"--precision", "bf16", "--memory", "90MB", "--batch", "2"}));
  const int64_t elements = 5717416;
  EXPECT_EQ(answer["model"], "vit --model tiny");
  EXPECT_EQ(answer["parameters"], elements);
  EXPECT_EQ(answer["precision"], "bf16");
  EXPECT_EQ(answer["optimizer"], "Adam");
  EXPECT_EQ(answer["world"], 8);
  EXPECT_EQ(answer["batch_size"], 2);
  EXPECT_EQ(answer["memory"], 90'000'000);
  const int64_t activations = answer["activations"]["bytes"];
  EXPECT_GT(activations, 1'000'000);
  EXPECT_THAT(answer["activations"]["method"].get<std::string>(), HasSubstr("measured"));
  ASSERT_EQ(answer["stages"].size(), 4u);
  for (int stage = 0; stage < 4; ++stage) {
    SCOPED_TRACE(stage);
    const json& told = answer["stages"][static_cast<size_t>(stage)];
    EXPECT_EQ(told["stage"], stage);
    int64_t in_buckets = 0, padded = 0;
    std::set<std::string> names;
    for (const json& bucket : told["buckets"]) {
      EXPECT_EQ(bucket["dtype"], "bfloat16");
      const int64_t whole = bucket["elements"].get<int64_t>() + bucket["padding"].get<int64_t>();
      EXPECT_EQ(bucket["part"].get<int64_t>() * (stage == 0 ? 1 : 8), whole);
      in_buckets += bucket["elements"].get<int64_t>();
      padded += whole;
      for (const json& name : bucket["parameters"]) {
        EXPECT_TRUE(names.insert(name).second) << name << " is in two buckets";
      }
    }
    EXPECT_EQ(in_buckets, elements);
    EXPECT_EQ(names.size(), 152u);
    const json& bytes = told["bytes"];
    const int64_t part = padded / (stage == 0 ? 1 : 8);
    EXPECT_EQ(bytes["master"], 4 * part);
    EXPECT_EQ(bytes["optimizer"], 8 * part);
    EXPECT_EQ(bytes["gradients"], 2 * (stage < 2 ? padded : part));
    if (stage < 3) EXPECT_EQ(bytes["parameters"], 2 * padded);
    if (stage == 3) EXPECT_LT(bytes["parameters"], padded);  // small ones stay whole
    const int64_t total = bytes["parameters"].get<int64_t>() + bytes["gradients"].get<int64_t>() +
                          bytes["master"].get<int64_t>() + bytes["optimizer"].get<int64_t>() +
                          bytes["buffers"].get<int64_t>() + bytes["other"].get<int64_t>() + activations;
    EXPECT_EQ(bytes["total"], total);
    EXPECT_EQ(told["fits"], total <= 90'000'000);
  }
  EXPECT_EQ(answer["stages"][0]["fits"], false);
  EXPECT_EQ(answer["stages"][3]["fits"], true);
}

// With float32 weights: all of them in 16 bit, unless units compute their activations again.
TEST(PlanTest, CountsTheCopiesThatAutocastMakes) {
  const json answer = plan_json(tiny_vit({"--autocast", "bf16", "--no-activations"}));
  const json plain = plan_json(tiny_vit({"--no-activations"}));
  const auto bytes = [](const json& told, size_t stage, const char* what) -> int64_t {
    return told["stages"][stage]["bytes"][what];
  };
  for (size_t stage = 0; stage < 4; ++stage) {
    EXPECT_EQ(bytes(plain, stage, "casts"), 0);
    EXPECT_EQ(bytes(answer, stage, "total"), bytes(plain, stage, "total") + bytes(answer, stage, "casts"));
    EXPECT_EQ(bytes(answer, stage, "casts"), 2 * 5717416);
  }
  const json again =
      plan_json(tiny_vit({"--autocast", "bf16", "--no-activations", "--activation-checkpointing"}));
  EXPECT_GT(bytes(again, 3, "casts"), 0);
  EXPECT_LT(bytes(again, 3, "casts"), 5717416);
  const Finished text = plan(tiny_vit({"--autocast", "bf16", "--no-activations"}));
  EXPECT_THAT(text.output,
              AllOf(HasSubstr("a training with --precision bf16"), ContainsRegex("buffers +casts ")));
  const Finished both = plan(tiny_vit({"--autocast", "bf16", "--precision", "bf16"}));
  EXPECT_NE(both.code, kExitSuccess);
  EXPECT_THAT(both.errors, HasSubstr("--autocast bf16 is for parameters in fp32, and --precision is bf16"));
}

TEST(PlanTest, ActivationsGrowWithTheBatchAndShrinkByComputingThemAgain) {
  const auto activations = [](const std::vector<std::string>& more) -> int64_t {
    return plan_json(tiny_vit(more))["activations"]["bytes"];
  };
  const int64_t four = activations({"--batch", "4"});
  const int64_t eight = activations({"--batch", "8"});
  EXPECT_GT(eight, four);
  EXPECT_LE(eight, 2 * four);
  EXPECT_LT(activations({"--batch", "8", "--activation-checkpointing"}), eight / 2);
  const json without = plan_json(tiny_vit({"--no-activations"}));
  EXPECT_TRUE(without["activations"]["bytes"].is_null());
  EXPECT_EQ(without["activations"]["method"], "not measured: --no-activations");
  EXPECT_FALSE(without.contains("memory"));
  EXPECT_FALSE(without["stages"][0].contains("fits"));
}

TEST(PlanTest, OfAFileForMoreRanksThanAnyMachineHas) {
  const TemporaryFolder folder;
  const auto path = folder.path() / "model.safetensors";
  checkpoint::write_weights(path, {{"layers.0.weight", torch::ones({64, 64})},
                                   {"layers.1.weight", torch::ones({64, 64})},
                                   {"norm.running_mean", torch::ones({64})}});
  const json answer =
      plan_json({path.string(), "--world", "1024", "--zero", "3", "--persistence-threshold", "0"});
  EXPECT_EQ(answer["parameters"], 2 * 64 * 64) << "a statistic is not trained";
  EXPECT_EQ(answer["optimizer"], "adam");
  EXPECT_EQ(answer["activations"]["method"], "unknown: a file has no forward");
  ASSERT_EQ(answer["stages"].size(), 1u);
  ASSERT_EQ(answer["stages"][0]["buckets"].size(), 2u);
  EXPECT_EQ(answer["stages"][0]["buckets"][0]["unit"], 2);
}

TEST(PlanTest, RefusesWhatItCannotPlan) {
  const TemporaryFolder folder;
  const auto no_weights = folder.path() / "notes.safetensors";
  std::ofstream(no_weights) << "not a file of tensors";
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{}, "MODEL is required"},
      {{"vti"}, "neither a recipe (sine, mnist, fashion-mnist, cifar100, vit, gpt) nor a file: 'vti'"},
      {{"vit", "--model", "huge"}, "give tiny, small or base: 'huge'"},
      {{"vit", "--world", "0"}, "--world"},
      {{"vit", "--world", "eight"}, "--world"},
      {{"vit", "--zero", "4"}, "--zero"},
      {{"vit", "--zero", "1,x"}, "--zero"},
      {{"vit", "--precision", "fp8"}, "--precision"},
      {{"vit", "--batch", "0"}, "--batch"},
      {{"vit", "--optimizer", "lbfgs"}, "--optimizer"},
      {{"vit", "--memory", "lots"}, "not an amount of memory, write 80GB or 24GiB: 'lots'"},
      {{"vit", "--memory", "80 parsecs"}, "not an amount of memory, write 80GB or 24GiB: '80 parsecs'"},
      {{"vit", "--memory", "0GB"}, "not an amount of memory, write 80GB or 24GiB: '0GB'"},
      {{"vit", "--bucket-bytes", "0"}, "--bucket-bytes"},
      {{"vit", "--stage", "3"}, "--stage"},
      {{no_weights.string()}, "notes.safetensors"},
  };
  for (const auto& [arguments, error] : cases) {
    const Finished result = plan(arguments);
    EXPECT_EQ(result.code, kExitUsage) << error << ": " << result.errors;
    EXPECT_THAT(result.errors, HasSubstr(error));
    EXPECT_EQ(result.output, "");
  }
}

// Three blocks of 92 parameters between a tied weight of 16: 4 bytes each, and activations of a batch of 4 as
// exported.
TEST(PlanTest, PlansAnExportedModelByItsModules) {
  const std::string file = data_path("unit/exported/golden/blocks.pt2");
  const std::vector<std::string> words = {file, "--world", "2", "--zero", "0,3", "--persistence-threshold",
                                          "0"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), words.begin(), words.end());
    return more;
  };
  const json answer = plan_json(words);
  EXPECT_EQ(answer["parameters"], 292);
  EXPECT_EQ(answer["batch_size"], 4);
  EXPECT_EQ(answer["optimizer"], "adamw");
  EXPECT_EQ(answer["stages"][0]["bytes"]["parameters"], (292 + 28) * 4);
  const auto units = [](const json& plan) {
    std::map<int, int64_t> elements;
    for (const json& bucket : plan["stages"][1]["buckets"]) {
      elements[bucket["unit"].get<int>()] += bucket["elements"].get<int64_t>();
    }
    return elements;
  };
  EXPECT_EQ(units(answer), (std::map<int, int64_t>{{0, 16}, {1, 92}, {2, 92}, {3, 92}}));
  const json whole = plan_json(with({"--shard-by", "none"}));
  EXPECT_EQ(units(whole), (std::map<int, int64_t>{{0, 292}}));
  const json large = plan_json(with({"--batch", "64"}));
  const json recomputed = plan_json(with({"--batch", "64", "--recompute-by", "blocks.*"}));
  EXPECT_GT(large["activations"]["bytes"], answer["activations"]["bytes"]);
  EXPECT_LT(recomputed["activations"]["bytes"], large["activations"]["bytes"]);
  EXPECT_EQ(recomputed["activations"]["checkpointing"], true);

  const Finished unknown = plan(with({"--shard-by", "layers.*"}));
  EXPECT_EQ(unknown.code, kExitUsage);
  EXPECT_THAT(unknown.errors, HasSubstr("'layers.*' matches no module; its modules are: embed, blocks.0, "));
  const Finished recipe = plan({"sine", "--shard-by", "layers.*"});
  EXPECT_EQ(recipe.code, kExitUsage);
  EXPECT_THAT(recipe.errors, HasSubstr("are for exported models (.pt2), and this is none: 'sine'"));
}

}  // namespace
}  // namespace lockstep::test
