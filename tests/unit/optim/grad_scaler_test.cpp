#include <lockstep/communicator.h>
#include <lockstep/error.h>
#include <lockstep/json.h>
#include <lockstep/optim.h>

#include <limits>

#include "support/config_error.h"

namespace lockstep {
namespace {

using test::error_of;
using testing::HasSubstr;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// One step whose gradients are finite or not.
bool step(GradScaler& scaler, bool finite) {
  auto gradient = torch::full({3}, finite ? 1.0f : kInfinity);
  const bool take = scaler.unscale({gradient});
  scaler.update();
  return take;
}

TEST(GradScaler, ScalesTheLossAndUnscalesTheGradient) {
  GradScaler scaler({.init_scale = 1024});
  auto weight = torch::tensor({0.25f, -3.0f}, torch::requires_grad());
  scaler.scale((weight * weight).sum()).backward();
  EXPECT_TRUE(torch::equal(weight.grad(), torch::tensor({512.0f, -6144.0f})));
  EXPECT_TRUE(scaler.unscale({weight.grad()}));
  EXPECT_TRUE(torch::equal(weight.grad(), torch::tensor({0.5f, -6.0f})));
}

TEST(GradScaler, TakesBuffersOfSeveralTypesAndNone) {
  GradScaler scaler({.init_scale = 4});
  auto floats = torch::full({5}, 8.0f);
  auto doubles = torch::full({5}, 8.0, torch::kDouble);
  auto bfloats = torch::full({5}, 8.0f, torch::kBFloat16);
  EXPECT_TRUE(scaler.unscale({floats, at::Tensor(), doubles, torch::empty({0}), bfloats}));
  for (const auto& tensor : {floats, doubles, bfloats}) {
    EXPECT_TRUE(torch::equal(tensor.to(torch::kDouble), torch::full({5}, 2.0, torch::kDouble)));
  }
  scaler.update();
  doubles[2] = std::numeric_limits<double>::quiet_NaN();
  EXPECT_FALSE(scaler.unscale({floats, doubles}));
  scaler.update();
  EXPECT_TRUE(scaler.unscale({})) << "no gradient at all is finite";
}

TEST(GradScaler, CountsSkippedSteps) {
  GradScaler scaler({.growth_interval = 2});
  EXPECT_TRUE(step(scaler, true));
  EXPECT_FALSE(step(scaler, false));
  EXPECT_FALSE(step(scaler, false));
  EXPECT_EQ(scaler.consecutive_skips(), 2);
  EXPECT_TRUE(scaler.last_step_skipped());
  EXPECT_EQ(scaler.current_scale(), 16384);
  EXPECT_TRUE(step(scaler, true));
  EXPECT_EQ(scaler.consecutive_skips(), 0);
  EXPECT_TRUE(step(scaler, true));
  EXPECT_EQ(scaler.skipped_steps(), 2);
  EXPECT_EQ(scaler.current_scale(), 32768) << "grew after two finite steps";
}

// The same schedule with and without the host's looking at each step.
TEST(GradScaler, StepsOnTheDeviceCountAsThoseOnTheHostDo) {
  GradScaler host({.growth_interval = 3}), device({.growth_interval = 3});
  const auto expect_equal = [&](int i) {
    EXPECT_EQ(device.current_scale(), host.current_scale()) << i;
    EXPECT_EQ(device.growth_tracker(), host.growth_tracker()) << i;
    EXPECT_EQ(device.skipped_steps(), host.skipped_steps()) << i;
    EXPECT_EQ(device.consecutive_skips(), host.consecutive_skips()) << i;
    EXPECT_EQ(device.state(), host.state()) << i;
  };
  const std::string schedule = "..x.xx....xxx.x......xx";
  for (size_t i = 0; i < schedule.size(); ++i) {
    const bool finite = schedule[i] == '.';
    auto gradient = torch::full({3}, finite ? 1.0f : kInfinity);
    const at::Tensor found = device.unscale_on_device({gradient}, Communicator());
    EXPECT_EQ(found.item<float>() == 0, finite);
    device.update();
    step(host, finite);
    if (i % 3 == 0) expect_equal(static_cast<int>(i));
  }
  expect_equal(-1);
  // One may take the other's place at any time.
  step(device, false);
  step(host, false);
  expect_equal(-2);
}

TEST(GradScaler, GivesUpWhereNoScaleHelps) {
  GradScaler scaler({.max_consecutive_skips = 5});
  for (int i = 0; i < 4; ++i) step(scaler, false);
  scaler.check_progress();
  step(scaler, false);
  EXPECT_THAT(error_of([&] { scaler.check_progress(); }),
              HasSubstr("the gradients were not finite in the last 5 steps, down to a loss scale of 2048"));
  step(scaler, true);
  scaler.check_progress();
}

TEST(GradScaler, SaysOnceThatTheScaleHasCollapsed) {
  GradScaler scaler({.init_scale = 4});
  testing::internal::CaptureStderr();
  step(scaler, false);
  step(scaler, false);
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "") << "1 is no collapse yet";
  testing::internal::CaptureStderr();
  for (int i = 0; i < 5; ++i) step(scaler, false);
  const std::string text = testing::internal::GetCapturedStderr();
  EXPECT_THAT(text, HasSubstr("the loss scale fell to 0.5 after 3 skipped steps in a row"));
  EXPECT_EQ(text.find("fell"), text.rfind("fell"));
  testing::internal::CaptureStderr();
  step(scaler, true);
  step(scaler, false);
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("after 1 skipped steps")) << "a new collapse";
}

TEST(GradScaler, StateGoesOn) {
  GradScaler straight({.init_scale = 256, .growth_interval = 3});
  const std::vector<bool> schedule{true, true, false, true, true, true, true, false, false, true, true, true};
  for (size_t stop = 0; stop < schedule.size(); ++stop) {
    GradScaler resumed;
    resumed.load_state(Json::parse(straight.state().dump()));
    GradScaler copy;
    copy.load_state(straight.state());
    for (size_t i = stop; i < schedule.size(); ++i) step(resumed, schedule[i]), step(copy, schedule[i]);
    EXPECT_EQ(resumed.state(), copy.state());
    step(straight, schedule[stop]);
  }
  EXPECT_EQ(straight.skipped_steps(), 3);
}

TEST(GradScaler, TakesTheStateOfPython) {
  GradScaler scaler;
  scaler.load_state(Json::parse(
      R"({"scale": 128.0, "growth_factor": 2.0, "backoff_factor": 0.5, "growth_interval": 2, "_growth_tracker": 1})"));
  EXPECT_TRUE(step(scaler, true));
  EXPECT_EQ(scaler.current_scale(), 256);
}

TEST(GradScaler, WrongUseIsRefused) {
  GradScaler scaler;
  EXPECT_THAT(error_of([&] { scaler.update(); }), HasSubstr("unscale()"));
  auto gradient = torch::ones({2});
  scaler.unscale({gradient});
  EXPECT_THAT(error_of([&] { scaler.unscale({gradient}); }), HasSubstr("twice"));
  scaler.update();
  EXPECT_THAT(error_of([&] { scaler.unscale({gradient.to(torch::kHalf)}); }), HasSubstr("float16"));
  EXPECT_TRUE(scaler.unscale({gradient})) << "the refused call left nothing behind";
}

TEST(GradScaler, BadArgumentsAreNamed) {
  EXPECT_THAT(error_of([] { GradScaler({.init_scale = 0}); }), HasSubstr("'init_scale'"));
  EXPECT_THAT(error_of([] { GradScaler({.growth_factor = 1}); }), HasSubstr("'growth_factor'"));
  EXPECT_THAT(error_of([] { GradScaler({.backoff_factor = 1}); }), HasSubstr("'backoff_factor'"));
  EXPECT_THAT(error_of([] { GradScaler({.growth_interval = 0}); }), HasSubstr("'growth_interval'"));
}

}  // namespace
}  // namespace lockstep
