// `lockstep ckpt` as a user runs it, on checkpoints that the store wrote.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "checkpoint/store.h"
#include "checkpoint/torch_file.h"
#include "checkpoint/weights.h"
#include "support/golden.h"
#include "support/process.h"
#include "support/temporary_folder.h"

namespace lockstep::test {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

class CkptTest : public testing::Test {
 protected:
  Finished ckpt(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {program_path("lockstep"), "ckpt"});
    Process process(std::move(arguments));
    return finish(process, std::chrono::seconds(60));
  }

  json ckpt_json(std::vector<std::string> arguments) {
    arguments.push_back("--json");
    return json::parse(ckpt(std::move(arguments)).output);
  }

  // A run with the steps 10, 20 and 30, of which 20 has the lowest metric.
  void make_run() {
    checkpoint::Store store(checkpoints());
    for (const int64_t step : {10, 20, 30}) {
      checkpoint::Snapshot snapshot;
      snapshot.step = step;
      snapshot.epoch = step / 10;
      snapshot.world_size = 2;
      snapshot.metric = step == 20 ? 0.25 : 0.5;
      snapshot.metadata = {{"config", {{"learning_rate", 0.125}}}, {"scheduler", {{"kind", "cosine"}}}};
      snapshot.pieces = {
          checkpoint::TensorPiece::whole("model.weight", torch::full({2, 3}, static_cast<double>(step))),
          checkpoint::TensorPiece::whole("model.steps", torch::tensor(step)),
          checkpoint::TensorPiece::whole("optimizer.weight.momentum", torch::ones({2, 3}))};
      store.save(snapshot);
    }
  }

  std::string path(const std::string& name = "") const { return folder_.path() / name; }
  std::string checkpoints() const { return path("run/checkpoints"); }
  std::string step(int number) const { return checkpoints() + "/" + checkpoint::step_name(number); }

  // Changes one byte in the middle of a shard.
  void damage(const std::string& checkpoint) {
    for (const auto& entry : std::filesystem::directory_iterator(checkpoint)) {
      if (entry.path().extension() != ".safetensors") continue;
      std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
      file.seekp(static_cast<std::streamoff>(entry.file_size()) - 3);
      file.put('!');
    }
  }

  TemporaryFolder folder_;
};

TEST_F(CkptTest, ListsTheCheckpointsOfARun) {
  make_run();
  const Finished result = ckpt({"ls", path("run")});
  EXPECT_EQ(result.code, 0) << result.errors;
  EXPECT_THAT(result.output,
              AllOf(HasSubstr("step"), HasSubstr("0.25"), HasSubstr("latest"), HasSubstr("best")));
  const json rows = ckpt_json({"ls", checkpoints()});
  ASSERT_EQ(rows.size(), 3U);
  EXPECT_EQ(rows[0]["step"], 30);
  EXPECT_EQ(rows[0]["latest"], true);
  EXPECT_EQ(rows[0]["best"], false);
  EXPECT_EQ(rows[1]["step"], 20);
  EXPECT_EQ(rows[1]["best"], true);
  EXPECT_EQ(rows[1]["epoch"], 2);
  EXPECT_EQ(rows[1]["tensors"], 3);
  EXPECT_EQ(rows[1]["world_size"], 2);
  EXPECT_EQ(ckpt_json({"ls", checkpoints(), "--best", "max"})[0]["best"], true);
}

TEST_F(CkptTest, ListsTheOneThatItsRunTookForTheBest) {
  checkpoint::Store store(checkpoints());
  for (const int64_t step : {10, 20, 30}) {
    checkpoint::Snapshot snapshot;
    snapshot.step = step;
    snapshot.metric = static_cast<double>(step);
    snapshot.best = step == 20;
    store.save(snapshot);
  }
  EXPECT_EQ(ckpt_json({"ls", checkpoints()})[1]["best"], true);
  EXPECT_EQ(ckpt_json({"ls", checkpoints(), "--best", "min"})[2]["best"], true);
}

TEST_F(CkptTest, ExportsTheAverageOfTheWeights) {
  const torch::Tensor average = torch::rand({2, 3});
  checkpoint::Snapshot snapshot;
  snapshot.step = 10;
  const torch::Tensor weight = torch::ones({2, 3}, torch::kBFloat16);
  snapshot.pieces = {checkpoint::TensorPiece::whole("model.weight", weight),
                     checkpoint::TensorPiece::whole("model.steps", torch::tensor(7)),
                     // A tied weight has its average under one of its names.
                     checkpoint::TensorPiece::whole("model.tied", weight),
                     checkpoint::TensorPiece::whole("model.other", torch::zeros({2, 3}, torch::kBFloat16)),
                     checkpoint::TensorPiece::whole("lockstep/average/other", torch::zeros({2, 3})),
                     checkpoint::TensorPiece::whole("lockstep/average/weight", average),
                     checkpoint::TensorPiece::whole("lockstep/average/steps", torch::tensor(7)),
                     checkpoint::TensorPiece::whole("lockstep/average/n_averaged", torch::tensor(10))};
  checkpoint::Store(checkpoints()).save(snapshot);
  const auto exported = [&](const std::vector<std::string>& more) {
    std::vector<std::string> arguments = {"export", path("run"), "--to", path("out.safetensors"),
                                          "--what", "average"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Finished result = ckpt(arguments);
    EXPECT_EQ(result.code, 0) << result.errors;
    const NamedTensors tensors = checkpoint::read_weights(path("out.safetensors"));
    return std::map<std::string, torch::Tensor>(tensors.begin(), tensors.end());
  };
  auto tensors = exported({});
  ASSERT_EQ(tensors.size(), 4U);
  EXPECT_TRUE(torch::equal(tensors.at("weight"), average.to(torch::kBFloat16))) << "as the model takes it";
  EXPECT_TRUE(torch::equal(tensors.at("tied"), tensors.at("weight")));
  EXPECT_EQ(tensors.at("steps").item<int64_t>(), 7);
  tensors = exported({"--dtype", "float32"});
  EXPECT_TRUE(torch::equal(tensors.at("weight"), average));
  EXPECT_TRUE(torch::equal(tensors.at("tied"), average));
}

TEST_F(CkptTest, RefusesToExportAnAverageThatIsNotThere) {
  make_run();
  const Finished none = ckpt({"export", path("run"), "--to", path("out.pt"), "--what", "average"});
  EXPECT_EQ(none.code, 2);
  EXPECT_THAT(none.errors, HasSubstr("holds no averaged weights: its run had no ema_decay"));
  checkpoint::write_weights(path("file.pt"), {{"weight", torch::ones({2})}});
  EXPECT_THAT(ckpt({"export", path("file.pt"), "--to", path("out.pt"), "--what", "average"}).errors,
              HasSubstr("is a file of weights"));
}

TEST_F(CkptTest, ListsABrokenOneAsSuch) {
  make_run();
  std::filesystem::remove(step(30) + "/manifest.json");
  const json rows = ckpt_json({"ls", path("run")});
  EXPECT_EQ(rows[0]["step"], 20);
  EXPECT_EQ(rows[0]["latest"], true);
  EXPECT_EQ(rows[2]["valid"], false);
  EXPECT_THAT(ckpt({"ls", path("run")}).output, HasSubstr("broken"));
}

TEST_F(CkptTest, InspectsACheckpoint) {
  make_run();
  const Finished result = ckpt({"inspect", step(20)});
  EXPECT_EQ(result.code, 0) << result.errors;
  EXPECT_THAT(result.output, AllOf(HasSubstr("model.weight"), HasSubstr("float32"), HasSubstr("[2, 3]"),
                                   HasSubstr("int64"), HasSubstr("learning_rate"), HasSubstr("cosine")));
  const json content = ckpt_json({"inspect", path("run")});
  EXPECT_EQ(content["step"], 30) << "the newest one";
  EXPECT_EQ(content["tensors"].size(), 3U);
  EXPECT_EQ(content["bytes"], 24 + 8 + 24);
  EXPECT_EQ(content["metadata"]["scheduler"]["kind"], "cosine");
}

TEST_F(CkptTest, InspectsAFileOfPython) {
  const json content = ckpt_json({"inspect", data_path("unit/checkpoint/golden/network.pt")});
  EXPECT_EQ(content["kind"], "torch");
  EXPECT_EQ(content["tensors"].size(), 9U);
  EXPECT_EQ(content["tensors"][0],
            json({{"name", "0.weight"}, {"dtype", "float32"}, {"shape", {4, 3}}, {"bytes", 48}}));
}

TEST_F(CkptTest, VerifyNamesWhatIsBroken) {
  make_run();
  EXPECT_EQ(ckpt({"verify", path("run")}).code, 0);
  damage(step(20));
  const Finished one = ckpt({"verify", step(20)});
  EXPECT_EQ(one.code, 1);
  EXPECT_THAT(one.output, AllOf(HasSubstr("BROKEN"), HasSubstr("shard-00000-of-00001.safetensors")));
  const Finished all = ckpt({"verify", path("run")});
  EXPECT_EQ(all.code, 1);
  EXPECT_THAT(all.output, AllOf(HasSubstr("ok      " + step(30)), HasSubstr("BROKEN  " + step(20))));
  EXPECT_EQ(ckpt({"verify", step(10)}).code, 0);
}

TEST_F(CkptTest, ExportsAndImportsTheModel) {
  make_run();
  for (const std::string name : {"w.pt", "w.safetensors"}) {
    const Finished result = ckpt({"export", path("run"), "--to", path(name), "--prefix", "module."});
    ASSERT_EQ(result.code, 0) << result.errors;
    const auto tensors = checkpoint::read_weights(path(name));
    ASSERT_EQ(tensors.size(), 2U);
    for (const auto& [key, tensor] : tensors) {
      EXPECT_TRUE(key == "module.weight" ? tensor.equal(torch::full({2, 3}, 30.0))
                                         : tensor.item<int64_t>() == 30);
    }
    ASSERT_EQ(ckpt({"import", path(name), "--to", path("from_" + name)}).code, 0);
    EXPECT_EQ(ckpt({"diff", path("from_" + name), step(30)}).code, 0) << "without the prefix again";
    EXPECT_EQ(ckpt_json({"inspect", path("from_" + name)})["metadata"]["weights_only"], true);
  }
  ASSERT_EQ(ckpt({"export", step(10), "--to", path("all.safetensors"), "--what", "all"}).code, 0);
  EXPECT_EQ(checkpoint::read_weights(path("all.safetensors")).size(), 3U);
}

TEST_F(CkptTest, ExportsInAnotherDtype) {
  make_run();
  ASSERT_EQ(ckpt({"export", path("run"), "--to", path("half.safetensors"), "--dtype", "float16"}).code, 0);
  const Finished result = ckpt({"inspect", path("half.safetensors")});
  EXPECT_THAT(result.output, HasSubstr("float16"));
  EXPECT_THAT(result.output, Not(HasSubstr("float32")));
  EXPECT_THAT(result.output, HasSubstr("int64"));  // a counter stays what it is
}

TEST_F(CkptTest, ImportsADeepSpeedCheckpoint) {
  const std::string saved = data_path("fuzz/deepspeed_checkpoint/stage3");
  const Finished result = ckpt({"import", saved, "--to", path("run")});
  ASSERT_EQ(result.code, 0) << result.errors;
  EXPECT_THAT(result.output, AllOf(HasSubstr("step-0000000003"), HasSubstr("stage 3, 2 ranks, step 3"),
                                   HasSubstr("left behind: when")));
  EXPECT_EQ(ckpt({"verify", path("run")}).code, 0);
  EXPECT_EQ(ckpt_json({"inspect", path("run")})["metadata"]["optimizer"]["class"], "AdamW");
  const Finished again = ckpt({"import", saved, "--to", path("run")});
  EXPECT_EQ(again.code, 2);
  EXPECT_THAT(again.errors, HasSubstr("already has checkpoints"));
  ASSERT_EQ(ckpt({"import", saved, "--tag", "global_step3", "--to", path("w.safetensors")}).code, 0);
  EXPECT_EQ(ckpt({"diff", path("w.safetensors"), path("run")}).code, 0);
  const Finished missing = ckpt({"import", saved, "--tag", "global_step9", "--to", path("other")});
  EXPECT_EQ(missing.code, 2);
  EXPECT_THAT(missing.errors, HasSubstr("global_step9"));
  EXPECT_FALSE(std::filesystem::exists(path("other")));
}

TEST_F(CkptTest, FillsATorchScriptModule) {
  const std::string golden = data_path("unit/checkpoint/golden/");
  NamedTensors weights = checkpoint::read_weights(golden + "network.pt");
  for (auto& entry : weights) entry.second = entry.second + 1;
  checkpoint::write_torch_file(path("w.pt"), weights);
  const Finished result =
      ckpt({"export", path("w.pt"), "--to", path("filled.pt"), "--script", golden + "script.pt"});
  ASSERT_EQ(result.code, 0) << result.errors;
  EXPECT_EQ(ckpt({"diff", path("filled.pt"), path("w.pt")}).code, 0);
}

TEST_F(CkptTest, DiffTellsNamesShapesAndValues) {
  checkpoint::write_torch_file(path("a.pt"), {{"same", torch::ones({2})},
                                              {"value", torch::tensor({1.0, 2.0})},
                                              {"shape", torch::ones({2})},
                                              {"type", torch::ones({2})},
                                              {"gone", torch::ones({2})}});
  checkpoint::write_torch_file(path("b.pt"), {{"module.same", torch::ones({2})},
                                              {"module.value", torch::tensor({1.0, 2.5})},
                                              {"module.shape", torch::ones({3})},
                                              {"module.type", torch::ones({2}, torch::kDouble)},
                                              {"module.come", torch::ones({2})}});
  const Finished result = ckpt({"diff", path("a.pt"), path("b.pt")});
  EXPECT_EQ(result.code, 1);
  EXPECT_THAT(
      result.output,
      AllOf(HasSubstr("value"), HasSubstr("0.5"), HasSubstr("0.2"), HasSubstr("only in a: float32 [2]"),
            HasSubstr("only in b: float32 [2]"), HasSubstr("float32 [2] in a, float32 [3] in b"),
            HasSubstr("float64 [2] in b"), HasSubstr("5 of 6 tensors differ"), Not(HasSubstr("same"))));
  const json rows = ckpt_json({"diff", path("a.pt"), path("b.pt")});
  EXPECT_EQ(rows["different"], 5);
}

TEST_F(CkptTest, DiffHasATolerance) {
  make_run();
  EXPECT_EQ(ckpt({"diff", step(10), step(10)}).code, 0);
  EXPECT_EQ(ckpt({"diff", step(10), step(20)}).code, 1);
  EXPECT_EQ(ckpt({"diff", step(10), step(20), "--rtol", "0.6"}).code, 0);
  EXPECT_EQ(ckpt({"diff", step(10), step(20), "--atol", "9"}).code, 1);
  EXPECT_EQ(ckpt({"diff", step(10), step(20), "--atol", "10", "--what", "all"}).code, 0);
}

TEST_F(CkptTest, BadInputIsSaidAndChangesNothing) {
  make_run();
  const auto expect_refused = [&](const std::vector<std::string>& arguments, const std::string& text) {
    const Finished result = ckpt(arguments);
    EXPECT_EQ(result.code, 2) << text;
    EXPECT_THAT(result.errors, HasSubstr(text));
  };
  expect_refused({"ls", path("absent")}, "absent");
  expect_refused({"ls", path()}, "no checkpoints");
  expect_refused({"inspect", path("absent")}, "absent");
  expect_refused({"verify", path()}, "no checkpoints");
  expect_refused({"export", path("run"), "--to", path("w.onnx")}, ".safetensors, .pt or .pth");
  expect_refused({"export", path("run"), "--to", path("w.pt"), "--dtype", "float16", "--what", "all"},
                 "leave out --what all");
  expect_refused({"export", path("run"), "--to", path("no/such/w.pt")}, "no/such/w.pt");
  expect_refused({"import", data_path("unit/checkpoint/golden/network.pt"), "--to", checkpoints()},
                 "has checkpoints");
  expect_refused({"import", data_path("unit/checkpoint/golden/whole_module.pt"), "--to", path("new")},
                 "torch.save(model.state_dict()");
  EXPECT_FALSE(std::filesystem::exists(path("new")));
  expect_refused({"frobnicate"},
                 "there is no command 'lockstep ckpt frobnicate'; lockstep ckpt --help lists the commands");
  EXPECT_EQ(ckpt_json({"ls", path("run")}).size(), 3U);
}

}  // namespace
}  // namespace lockstep::test
