#include <lockstep/error.h>
#include <lockstep/optim.h>

#include "support/config_error.h"
#include "support/formula.h"

namespace lockstep {
namespace {

using test::error_of;
using testing::HasSubstr;

torch::nn::Sequential make_model() {
  torch::nn::Sequential model(torch::nn::Linear(3, 4), torch::nn::BatchNorm1d(4), torch::nn::Linear(4, 2));
  test::set_parameters(*model);
  return model;
}

// Other weights and buffers for every step.
void change(torch::nn::Sequential& model, int64_t step) {
  test::set_parameters(*model, 1000 * step);
  const torch::NoGradGuard no_grad;
  for (auto& buffer : model->buffers()) {
    if (buffer.is_floating_point()) {
      buffer.copy_(test::formula(buffer.sizes(), step));
    } else {
      buffer.fill_(step);
    }
  }
}

at::Tensor weight_of(torch::nn::Sequential& model) { return model->parameters()[0]; }

at::Tensor find(const NamedTensors& state, const std::string& name) {
  for (const auto& [key, tensor] : state) {
    if (key == name) return tensor;
  }
  throw std::out_of_range(name);
}

TEST(WeightAverage, FirstUpdateCopiesAndLaterOnesDecay) {
  auto model = make_model();
  WeightAverage average(*model, {.decay = 0.75});
  change(model, 1);
  const auto first = weight_of(model).detach().clone();
  average.update();
  EXPECT_TRUE(test::same_bits(find(average.state(), "0.weight"), first));
  change(model, 2);
  average.update();
  EXPECT_TRUE(torch::allclose(find(average.state(), "0.weight"), 0.75 * first + 0.25 * weight_of(model)));
  EXPECT_EQ(average.updates(), 2);
}

TEST(WeightAverage, WarmUpForgetsTheBeginning) {
  auto model = make_model();
  WeightAverage average(*model, {.decay = 0.999, .warm_up = true});
  change(model, 1);
  average.update();
  const auto first = weight_of(model).detach().clone();
  change(model, 2);
  average.update();
  const double decay = 2.0 / 11;
  EXPECT_TRUE(
      torch::allclose(find(average.state(), "0.weight"), decay * first + (1 - decay) * weight_of(model)));
}

TEST(WeightAverage, BuffersAreCopiedOrAveraged) {
  for (const auto buffers : {WeightAverageOptions::Buffers::kCopy, WeightAverageOptions::Buffers::kAverage}) {
    auto model = make_model();
    WeightAverage average(*model, {.decay = 0.5, .buffers = buffers});
    change(model, 2);
    average.update();
    change(model, 6);
    average.update();
    const bool copied = buffers == WeightAverageOptions::Buffers::kCopy;
    const auto state = average.state();
    EXPECT_EQ(find(state, "1.num_batches_tracked").item<int64_t>(), copied ? 6 : 4);
    EXPECT_EQ(test::same_bits(find(state, "1.running_mean"), model->named_buffers()["1.running_mean"]),
              copied);
  }
}

TEST(WeightAverage, UpdatesWhenItIsTime) {
  auto model = make_model();
  WeightAverage average(*model, {.update_every = 3, .start_step = 5});
  std::vector<int64_t> moved;
  for (int64_t step = 1; step <= 13; ++step) {
    if (average.update(step)) moved.push_back(step);
  }
  EXPECT_THAT(moved, testing::ElementsAre(6, 9, 12));
}

TEST(WeightAverage, SwapsInAndOut) {
  auto model = make_model();
  WeightAverage average(*model, {.decay = 0.5});
  change(model, 1);
  average.update();
  change(model, 2);
  average.update();
  const auto weight = weight_of(model);
  const auto live = weight.detach().clone();
  const auto averaged = find(average.state(), "0.weight").clone();
  {
    auto scope = average.swap_in();
    EXPECT_TRUE(test::same_bits(weight, averaged));
    EXPECT_TRUE(weight.requires_grad());
    EXPECT_THROW(average.update(), InternalError);
    EXPECT_THROW(average.state(), InternalError);
    EXPECT_THROW(auto twice = average.swap_in(), InternalError);
  }
  EXPECT_TRUE(test::same_bits(weight, live));
  EXPECT_TRUE(test::same_bits(find(average.state(), "0.weight"), averaged));
  try {
    auto scope = average.swap_in();
    throw std::runtime_error("the evaluation failed");
  } catch (const std::runtime_error&) {
  }
  EXPECT_TRUE(test::same_bits(weight, live));
}

// A weight that moves to 2: in 16 bits each thousandth of the way would be rounded away.
TEST(WeightAverage, MovesWithWeightsOf16Bits) {
  for (const auto dtype : {at::kBFloat16, at::kHalf}) {
    torch::nn::Linear model(4, 4);
    model->to(dtype);
    const torch::NoGradGuard no_grad;
    model->weight.fill_(1);
    WeightAverage average(*model, {.decay = 0.999});
    average.update();
    model->weight.fill_(2);
    double expected = 1;
    for (int step = 0; step < 1000; ++step) {
      average.update();
      expected = 0.999 * expected + 0.001 * 2;
    }
    const auto averaged = find(average.state(), "weight").clone();
    EXPECT_EQ(averaged.scalar_type(), at::kFloat);
    EXPECT_NEAR(averaged[0][0].item<double>(), expected, 1e-4);
    {
      const auto scope = average.swap_in();
      EXPECT_TRUE(test::same_bits(model->weight, averaged.to(dtype)));
    }
    EXPECT_TRUE(test::same_bits(model->weight, torch::full({4, 4}, 2, dtype)));
    EXPECT_TRUE(test::same_bits(find(average.state(), "weight"), averaged)) << "evaluating rounds nothing";
  }
}

TEST(WeightAverage, SharedWeightsComeBack) {
  torch::nn::Linear layer(2, 2);
  torch::nn::Sequential model(layer, layer);
  WeightAverage average(*model, {.decay = 0.5});
  change(model, 1);
  average.update();
  change(model, 2);
  average.update();
  const auto live = layer->weight.detach().clone();
  { auto scope = average.swap_in(); }
  EXPECT_TRUE(test::same_bits(layer->weight, live));
}

TEST(WeightAverage, StateGoesOn) {
  auto model = make_model();
  WeightAverage straight(*model, {.decay = 0.9, .warm_up = true});
  for (int64_t step = 1; step <= 3; ++step) {
    change(model, step);
    straight.update();
  }
  NamedTensors state = straight.state();
  for (auto& item : state) item.second = item.second.clone();

  auto other = make_model();
  WeightAverage resumed(*other, {.decay = 0.9, .warm_up = true});
  resumed.load_state(state);
  for (int64_t step = 4; step <= 6; ++step) {
    change(model, step);
    change(other, step);
    straight.update();
    resumed.update();
  }
  const auto left = straight.state();
  const auto right = resumed.state();
  for (size_t i = 0; i < left.size(); ++i) {
    EXPECT_TRUE(test::same_bits(left[i].second, right[i].second)) << left[i].first;
  }
}

TEST(WeightAverage, AStateThatDoesNotFitIsNamed) {
  auto model = make_model();
  WeightAverage average(*model);
  auto state = average.state();
  const auto load = [&](const NamedTensors& given) { return error_of([&] { average.load_state(given); }); };
  auto wrong = state;
  wrong[0].second = torch::zeros({4, 4});
  EXPECT_THAT(load(wrong), HasSubstr("0.weight is [4, 4] there and [4, 3] here"));
  wrong = state;
  wrong.erase(wrong.begin());
  EXPECT_THAT(load(wrong), HasSubstr("lacks a tensor of the model: 0.weight"));
  wrong = state;
  wrong.emplace_back("9.weight", torch::zeros({1}));
  EXPECT_THAT(load(wrong), HasSubstr("9.weight"));
}

TEST(WeightAverage, BadArgumentsAreNamed) {
  torch::nn::Linear model(1, 1);
  EXPECT_THAT(error_of([&] { WeightAverage(*model, {.decay = 1.5}); }), HasSubstr("'decay'"));
  EXPECT_THAT(error_of([&] { WeightAverage(*model, {.update_every = 0}); }), HasSubstr("'update_every'"));
  EXPECT_THAT(error_of([&] { WeightAverage(*model, {.start_step = -1}); }), HasSubstr("'start_step'"));
}

}  // namespace
}  // namespace lockstep
