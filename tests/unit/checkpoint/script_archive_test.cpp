// The weights of TorchScript archives are read as data: what torch::jit::load would give, and
// no code of the file runs.

#include <caffe2/serialize/inline_container.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/error.h>
#include <lockstep/weights.h>
#include <torch/script.h>
#include <torch/torch.h>

#include <filesystem>

#include "checkpoint/pickle.h"
#include "checkpoint/state_dict.h"
#include "checkpoint/torch_file.h"
#include "support/temporary_folder.h"
#include "unit/checkpoint/golden_files.h"

namespace lockstep::checkpoint {
namespace {

using test::golden;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::ThrowsMessage;

// What LibTorch itself finds in the file, by executing it.
NamedTensors executed(const std::filesystem::path& path) {
  const torch::jit::Module module = torch::jit::load(path.string());
  NamedTensors result;
  for (const auto& entry : module.named_parameters()) result.emplace_back(entry.name, entry.value.detach());
  for (const auto& entry : module.named_buffers()) result.emplace_back(entry.name, entry.value);
  return result;
}

void expect_what_libtorch_finds(const std::filesystem::path& path) {
  const NamedTensors read = read_torch_file(path), expected = executed(path);
  ASSERT_EQ(read.size(), expected.size()) << path;
  for (size_t i = 0; i < read.size(); ++i) {
    EXPECT_EQ(read[i].first, expected[i].first) << path;
    EXPECT_TRUE(read[i].second.equal(expected[i].second)) << path << ": " << read[i].first;
  }
}

torch::jit::Module script_module(const std::string& name) {
  torch::jit::Module module("__torch__." + name);
  module.register_attribute("training", c10::BoolType::get(), true);
  return module;
}

// A module that writes `target` when it is loaded.
torch::jit::Module writing_module(const std::filesystem::path& target) {
  torch::jit::Module module = script_module("Writing");
  module.register_parameter("weight", torch::ones({2}), false);
  module.define("def __getstate__(self):\n    return (self.weight, self.training)\n");
  module.define(
      "def __setstate__(self, state: Tuple[Tensor, bool]) -> None:\n"
      "    self.weight = state[0]\n"
      "    self.training = state[1]\n"
      "    torch.save(state[0], \"" +
      target.string() + "\")\n");
  module.define("def forward(self, x):\n    return x * self.weight\n");
  return module;
}

TEST(ScriptArchiveTest, TensorsAreThoseThatLibTorchFinds) {
  for (const char* name : {"script.pt", "tied_script.pt", "two_outputs.pt"}) {
    expect_what_libtorch_finds(golden(name));
  }
}

TEST(ScriptArchiveTest, AttributesThatAreNoWeightsAreLeftOut) {
  const test::TemporaryFolder folder;
  torch::jit::Module inner = script_module("inner.Block"), outer = script_module("outer.Net");
  inner.register_parameter("weight", torch::arange(6.0).reshape({2, 3}), false);
  inner.register_buffer("mean", torch::full({2}, 7.0));
  outer.register_attribute("scale", c10::TensorType::get(), torch::ones({3}));
  outer.register_attribute("sizes", c10::ListType::ofInts(), c10::List<int64_t>({1, 2}));
  outer.register_attribute("name", c10::StringType::get(), std::string("net"));
  outer.register_parameter("bias", torch::zeros({2}), false);
  outer.register_module("first", inner);
  outer.register_module("again", inner);
  outer.define("def forward(self, x):\n    return x + self.bias\n");
  const auto path = folder.path() / "net.pt";
  outer.save(path.string());
  expect_what_libtorch_finds(path);
  std::vector<std::string> names;
  for (const auto& [name, tensor] : read_torch_file(path)) names.push_back(name);
  EXPECT_THAT(names, ElementsAre("bias", "first.weight", "again.weight", "first.mean", "again.mean"));
}

TEST(ScriptArchiveTest, NoCodeOfAWeightsFileIsExecuted) {
  const test::TemporaryFolder folder;
  const auto path = folder.path() / "weights.pt", target = folder.path() / "written_by_the_file";
  writing_module(target).save(path.string());
  std::filesystem::remove(target);
  torch::nn::Linear model(2, 1);
  EXPECT_THAT([&] { load_weights(*model, path); },
              ThrowsMessage<ConfigError>(
                  AllOf(HasSubstr("weights.pt"), HasSubstr("__setstate__"), HasSubstr("state_dict()"))));
  EXPECT_FALSE(std::filesystem::exists(target));
  torch::jit::load(path.string());
  EXPECT_TRUE(std::filesystem::exists(target)) << "the code of this file does nothing";
}

TEST(ScriptArchiveTest, CodeInAnInnerModuleIsNotExecutedEither) {
  const test::TemporaryFolder folder;
  const auto path = folder.path() / "weights.pt", target = folder.path() / "written_by_the_file";
  torch::jit::Module outer = script_module("Outer");
  outer.register_module("head", writing_module(target));
  outer.define("def forward(self, x):\n    return self.head.forward(x)\n");
  outer.save(path.string());
  std::filesystem::remove(target);
  EXPECT_THAT([&] { read_torch_file(path); }, ThrowsMessage<ConfigError>(HasSubstr("module 'head'")));
  EXPECT_FALSE(std::filesystem::exists(target));
}

// Pickles by hand: an object of a class is a name, an empty tuple, NEWOBJ, its attributes, BUILD.
std::string script_object(const std::string& name, const std::string& attributes) {
  return "c__torch__\n" + name + "\n)\x81}(" + attributes + "ub";
}

std::string pickled_text(const std::string& value) {
  return "X" + std::string{static_cast<char>(value.size()), 0, 0, 0} + value;
}

TensorReferences tensors_of(const std::string& pickle, const std::string& source) {
  const Pickle parsed = parse_pickle("\x80\x02" + pickle + ".", UnknownNames::kKeep);
  return find_script_tensors(parsed.root, [&](const std::string& name) {
    return name == "code/__torch__.py" ? std::optional(source) : std::nullopt;
  });
}

TEST(ScriptArchiveTest, HostileModulesAreErrors) {
  const std::string source =
      "class Net(Module):\n  __parameters__ = [\"w\", ]\n  __buffers__ = []\n  def forward(self): pass\n";
  EXPECT_THAT(tensors_of(script_object("Net", ""), source), IsEmpty());
  EXPECT_THAT([&] { tensors_of("K\x01", source); }, ThrowsMessage<PickleError>(HasSubstr("no module")));
  EXPECT_THAT([&] { tensors_of(script_object("Other", ""), source); },
              ThrowsMessage<PickleError>(HasSubstr("no module")));
  EXPECT_THAT(
      [&] {
        tensors_of(
            "c__torch__\nNet\n)\x81N"
            "b",
            source);
      },
      ThrowsMessage<PickleError>(HasSubstr("__setstate__")));
  EXPECT_THAT(
      [&] {
        tensors_of(script_object("Net", pickled_text("w") + "ctorch._utils\n_rebuild_qtensor\n)R"), source);
      },
      ThrowsMessage<PickleError>(HasSubstr("quantised")));
  // A module that holds itself.
  EXPECT_THAT([&] { tensors_of("c__torch__\nNet\n)\x81q\x01}(" + pickled_text("me") + "h\x01ub", source); },
              ThrowsMessage<PickleError>(HasSubstr("circle")));
  // 40 modules of which each holds the next one twice: a million million paths.
  std::string nested = script_object("Net", "") + "q" + std::string(1, '\0') + "0";
  for (int i = 0; i < 40; ++i) {
    const std::string get = std::string("h") + static_cast<char>(i);
    nested += script_object("Net", pickled_text("a") + get + pickled_text("b") + get) + "q" +
              static_cast<char>(i + 1) + "0";
  }
  nested += std::string("h") + static_cast<char>(40);
  EXPECT_THROW(tensors_of(nested, source), PickleError);
}

}  // namespace
}  // namespace lockstep::checkpoint
