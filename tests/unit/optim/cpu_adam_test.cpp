#include <lockstep/optim.h>

#include "support/config_error.h"
#include "support/formula.h"

namespace lockstep {
namespace {

using test::error_of;
using test::formula;
using test::same_bits;
using test::trained_formula;
using testing::HasSubstr;
using torch::optim::Optimizer;

void train(const at::Tensor& weight, Optimizer& optimizer, int steps = 1) {
  for (int step = 0; step < steps; ++step) {
    optimizer.zero_grad();
    (weight.square() * formula(weight.sizes(), 2)).sum().backward();
    optimizer.step();
  }
}

TEST(CpuAdam, TrainsAsTheClassesOfTorchOptim) {
  auto own = trained_formula({33, 7});
  auto theirs = trained_formula({33, 7});
  train(own, *make_cpu_adam({own}, {.lr = 0.01, .weight_decay = 0.1}), 10);
  torch::optim::AdamW adamw({theirs}, torch::optim::AdamWOptions(0.01).weight_decay(0.1));
  train(theirs, adamw, 10);
  EXPECT_TRUE(at::allclose(own, theirs, 1e-5, 1e-7));

  own = trained_formula({33, 7});
  theirs = trained_formula({33, 7});
  train(own, *make_cpu_adam({own}, {.lr = 0.01, .weight_decay = 0.1, .adam_w_mode = false}), 10);
  torch::optim::Adam adam({theirs}, torch::optim::AdamOptions(0.01).weight_decay(0.1));
  train(theirs, adam, 10);
  EXPECT_TRUE(at::allclose(own, theirs, 1e-5, 1e-7));

  own = trained_formula({33, 7});
  theirs = trained_formula({33, 7});
  train(own,
        *make_cpu_adagrad(
            {own}, {.lr = 0.1, .weight_decay = 0.1, .lr_decay = 0.01, .initial_accumulator_value = 0.5}),
        10);
  torch::optim::Adagrad adagrad(
      {theirs},
      torch::optim::AdagradOptions(0.1).weight_decay(0.1).lr_decay(0.01).initial_accumulator_value(0.5));
  train(theirs, adagrad, 10);
  EXPECT_TRUE(at::allclose(own, theirs, 1e-5, 1e-7));
}

TEST(CpuAdam, GoesOnFromTheCheckpointOfTorchsClass) {
  auto first = trained_formula({5, 3});
  torch::optim::AdamW adamw({first}, torch::optim::AdamWOptions(0.02).weight_decay(0.1));
  train(first, adamw, 4);
  auto second = first.detach().clone().set_requires_grad(true);
  const auto own = make_cpu_adam({second}, {.lr = 0.5});
  load_optimizer_state(*own, {{"w", second}}, optimizer_state(adamw, {{"w", first}}));
  EXPECT_EQ(optimizer_class(*own), "AdamW");
  train(first, adamw, 4);
  train(second, *own, 4);
  EXPECT_TRUE(at::allclose(first, second, 1e-5, 1e-7));

  const auto adam = make_cpu_adam({second}, {.adam_w_mode = false});
  EXPECT_EQ(optimizer_class(*adam), "Adam");
  EXPECT_EQ(optimizer_class(*make_cpu_adagrad({second})), "Adagrad");
  EXPECT_THAT(error_of([&] {
                load_optimizer_state(*adam, {{"w", second}}, optimizer_state(adamw, {{"w", first}}));
              }),
              HasSubstr("AdamW there, Adam here"));
}

TEST(CpuAdam, TakesGradientsOfOtherStrides) {
  const auto picture = formula({2, 3, 4, 5}, 1);
  auto plain = picture.clone().set_requires_grad(true);
  auto last = picture.contiguous(at::MemoryFormat::ChannelsLast).clone().set_requires_grad(true);
  const auto plain_adam = make_cpu_adam({plain});
  const auto last_adam = make_cpu_adam({last});
  for (int step = 0; step < 3; ++step) {
    plain.mutable_grad() = formula({2, 3, 4, 5}, 5 + step);
    last.mutable_grad() = plain.grad().clone();
    EXPECT_NE(last.strides(), last.grad().strides());
    plain_adam->step();
    last_adam->step();
  }
  EXPECT_TRUE(same_bits(plain, last));
}

TEST(CpuAdam, PassesOverParametersWithoutGradient) {
  auto used = trained_formula({2});
  auto unused = trained_formula({2});
  const auto optimizer = make_cpu_adam({used, unused});
  train(used, *optimizer);
  EXPECT_TRUE(same_bits(unused, formula({2}, 1)));
  EXPECT_EQ(optimizer->state().size(), 1);
}

TEST(CpuAdam, RefusesWhatItCannotDo) {
  const auto weight = trained_formula({4});
  EXPECT_THAT(error_of([&] { make_cpu_adam({}); }), HasSubstr("'parameters'"));
  EXPECT_THAT(error_of([&] { make_cpu_adam({weight}, {.lr = -1}); }),
              HasSubstr("'lr' of the optimizer CpuAdam"));
  EXPECT_THAT(error_of([&] { make_cpu_adam({weight}, {.beta1 = 1}); }), HasSubstr("'beta1'"));
  EXPECT_THAT(error_of([&] { make_cpu_adam({weight}, {.beta2 = -0.1}); }), HasSubstr("'beta2'"));
  EXPECT_THAT(error_of([&] { make_cpu_adam({weight}, {.eps = -1}); }), HasSubstr("'eps'"));
  EXPECT_THAT(error_of([&] { make_cpu_adam({weight}, {.weight_decay = NAN}); }), HasSubstr("'weight_decay'"));
  EXPECT_THAT(error_of([&] {
                make_cpu_adam({weight, weight.to(at::kDouble)});
              }),
              HasSubstr("parameter 1 is Double on cpu"));
  EXPECT_THAT(error_of([&] { make_cpu_adam({formula({4, 4}, 1).select(1, 0)}); }), HasSubstr("strides [4]"));
  const auto optimizer = make_cpu_adam({weight});
  static_cast<torch::optim::AdamWOptions&>(optimizer->param_groups()[0].options()).amsgrad(true);
  EXPECT_THAT(error_of([&] { train(weight, *optimizer); }), HasSubstr("'amsgrad'"));

  EXPECT_THAT(error_of([&] { make_cpu_adagrad({}); }), HasSubstr("'parameters'"));
  EXPECT_THAT(error_of([&] { make_cpu_adagrad({weight}, {.lr = -1}); }),
              HasSubstr("'lr' of the optimizer CpuAdagrad"));
  EXPECT_THAT(error_of([&] { make_cpu_adagrad({weight}, {.eps = -1}); }), HasSubstr("'eps'"));
  EXPECT_THAT(error_of([&] { make_cpu_adagrad({weight}, {.weight_decay = -1}); }),
              HasSubstr("'weight_decay'"));
  EXPECT_THAT(error_of([&] { make_cpu_adagrad({weight}, {.lr_decay = -1}); }), HasSubstr("'lr_decay'"));
  EXPECT_THAT(error_of([&] { make_cpu_adagrad({weight}, {.initial_accumulator_value = -1}); }),
              HasSubstr("'initial_accumulator_value'"));
}

}  // namespace
}  // namespace lockstep
