#include "train/model_graph.h"

#include <gtest/gtest.h>
#include <lockstep/sharded.h>
#include <torch/torch.h>

namespace lockstep::train {
namespace {

// A Sequential inside of another one needs a forward of its own.
struct InnerImpl : torch::nn::SequentialImpl {
  using SequentialImpl::SequentialImpl;
  torch::Tensor forward(torch::Tensor x) { return SequentialImpl::forward(std::move(x)); }
};
TORCH_MODULE(Inner);

struct TwoHeadsImpl : torch::nn::Module {
  TwoHeadsImpl()
      : body(register_module("body", torch::nn::Sequential(torch::nn::Linear(2, 3), torch::nn::ReLU(),
                                                           Inner(torch::nn::Linear(3, 4))))),
        head(register_module("head", torch::nn::Linear(4, 1))) {
    register_parameter("scale", torch::ones({5}));
  }
  torch::nn::Sequential body;
  torch::nn::Linear head;
};
TORCH_MODULE(TwoHeads);

TEST(ModelGraphTest, AModuleOfOnesOwnIsItsPartsWithoutAnOrder) {
  const Graph graph = model_graph(*TwoHeads());
  ASSERT_EQ(graph.size(), 5u);
  EXPECT_EQ(graph[0].name, "model");
  EXPECT_EQ(graph[0].kind, "TwoHeads");
  EXPECT_EQ(graph[0].parameters, 5);
  EXPECT_EQ(graph[4].name, "model/head");
  EXPECT_EQ(graph[4].kind, "Linear");
  EXPECT_EQ(graph[4].parameters, 5);
  EXPECT_NE(graph[4].description.find("in_features=4"), std::string::npos) << graph[4].description;
  EXPECT_TRUE(graph[4].inputs.empty());
}

TEST(ModelGraphTest, TheModulesOfASequentialFollowEachOtherThroughNestedOnes) {
  const Graph graph = model_graph(*TwoHeads());
  const std::vector<std::string> none;
  EXPECT_EQ(graph[1].name, "model/body/0");
  EXPECT_EQ(graph[1].inputs, none);
  EXPECT_EQ(graph[2].name, "model/body/1");
  EXPECT_EQ(graph[2].kind, "ReLU");
  EXPECT_EQ(graph[2].inputs, std::vector<std::string>{"model/body/0"});
  EXPECT_EQ(graph[3].name, "model/body/2/0");
  EXPECT_EQ(graph[3].inputs, std::vector<std::string>{"model/body/1"});
}

struct PartImpl : torch::nn::Module {
  PartImpl() : fc(register_module("fc", torch::nn::Linear(2, 3))) {}
  torch::Tensor forward(torch::Tensor x) { return fc(x); }
  torch::nn::Linear fc;
};

TEST(ModelGraphTest, ADividedModuleIsWhatItWouldBeWhole) {
  const torch::nn::Sequential model{Sharded<PartImpl>()};
  for (torch::Tensor& parameter : model->parameters()) parameter.set_data(torch::empty({0}));
  const Graph graph = model_graph(*model, {{"0.fc.weight", {3, 2}}, {"0.fc.bias", {3}}});
  ASSERT_EQ(graph.size(), 2u);
  EXPECT_EQ(graph[0].kind, "Part");
  EXPECT_EQ(graph[0].parameters, 0);
  EXPECT_EQ(graph[1].parameters, 9);
}

TEST(ModelGraphTest, AnEmptySequentialIsItself) {
  const Graph graph = model_graph(*torch::nn::Sequential());
  ASSERT_EQ(graph.size(), 1u);
  EXPECT_EQ(graph[0].kind, "Sequential");
}

}  // namespace
}  // namespace lockstep::train
