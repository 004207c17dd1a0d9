#include <lockstep/error.h>
#include <lockstep/search.h>
#include <lockstep/weights.h>

#include "support/formula.h"

namespace lockstep {
namespace {

TEST(ParameterVector, HoldsWhatIsTrainableInOrder) {
  torch::nn::Sequential model(torch::nn::Linear(2, 3), torch::nn::Linear(3, 1));
  model->parameters()[0].set_requires_grad(false);
  EXPECT_EQ(num_parameters(*model), 3 + 3 + 1);
  const auto vector = get_parameters(*model);
  EXPECT_EQ(vector.scalar_type(), torch::kDouble);
  EXPECT_TRUE(
      torch::equal(vector.narrow(0, 3, 3), model->parameters()[2].detach().view(3).to(torch::kDouble)));

  const auto frozen = model->parameters()[0].detach().clone();
  set_parameters(*model, torch::arange(7, torch::kDouble));
  EXPECT_TRUE(torch::equal(get_parameters(*model), torch::arange(7, torch::kDouble)));
  EXPECT_TRUE(torch::equal(model->parameters()[0], frozen));
  EXPECT_TRUE(model->parameters()[1].requires_grad());
}

TEST(ParameterVector, KeepsTheTypesOfTheModel) {
  torch::nn::Sequential model(torch::nn::Linear(2, 3), torch::nn::Linear(3, 1));
  model->to(torch::kBFloat16);
  set_parameters(*model, torch::full({num_parameters(*model)}, 0.5));
  EXPECT_EQ(model->parameters()[0].scalar_type(), torch::kBFloat16);
  EXPECT_TRUE(
      torch::equal(get_parameters(*model), torch::full({num_parameters(*model)}, 0.5, torch::kDouble)));
}

TEST(ParameterVector, AWrongLengthIsRefused) {
  torch::nn::Linear model(2, 3);
  const auto before = get_parameters(*model);
  for (const auto& wrong : {torch::zeros({8}), torch::zeros({10}), torch::zeros({3, 3})}) {
    EXPECT_THROW(set_parameters(*model, wrong), ConfigError);
  }
  EXPECT_TRUE(torch::equal(get_parameters(*model), before));
}

struct SharedLinearImpl : torch::nn::Module {
  SharedLinearImpl() {
    first = register_module("first", torch::nn::Linear(2, 2));
    again = register_module("again", first);
  }
  torch::nn::Linear first{nullptr};
  torch::nn::Linear again{nullptr};
};

TEST(ParameterVector, CountsASharedParameterOnce) {
  SharedLinearImpl tied;
  EXPECT_EQ(num_parameters(tied), 6);
  const auto named = named_parameters(tied);
  ASSERT_EQ(named.size(), 2u);
  EXPECT_EQ(named[0].first, "first.weight");
}

}  // namespace
}  // namespace lockstep
