#include "optim/deepspeed_scale.h"

#include <lockstep/communicator.h>
#include <lockstep/json.h>

#include <limits>

#include "support/config_error.h"

namespace lockstep {
namespace {

using optim::DeepSpeedLossScale;
using test::error_of;
using testing::HasSubstr;

void update(DeepSpeedLossScale& scale, std::initializer_list<bool> overflows) {
  for (const bool overflow : overflows) scale.update(overflow);
}

TEST(DeepSpeedScale, HalvesWhenTheHysteresisIsUsedUp) {
  DeepSpeedLossScale scale({.initial_scale_power = 8, .loss_scale_window = 100, .hysteresis = 3});
  update(scale, {true, true});
  EXPECT_EQ(scale.scale(), 256);
  update(scale, {true});
  EXPECT_EQ(scale.scale(), 128);
  update(scale, {false, true});
  EXPECT_EQ(scale.scale(), 64) << "a finite step gives nothing back";
}

TEST(DeepSpeedScale, AFiniteStepGivesConsecutiveHysteresisBack) {
  DeepSpeedLossScale scale({.initial_scale_power = 8, .hysteresis = 2, .consecutive_hysteresis = true});
  update(scale, {true, false, true, false, true});
  EXPECT_EQ(scale.scale(), 256);
  update(scale, {true});
  EXPECT_EQ(scale.scale(), 128);
}

TEST(DeepSpeedScale, DoublesAfterEveryWindow) {
  DeepSpeedLossScale scale({.initial_scale_power = 4, .loss_scale_window = 3, .hysteresis = 2});
  update(scale, {true, false, false, false});
  EXPECT_EQ(scale.scale(), 16);
  update(scale, {false, true});
  EXPECT_EQ(scale.scale(), 32) << "and the hysteresis is whole again";
}

TEST(DeepSpeedScale, AnOverflowAtTheMinimumIsAnError) {
  DeepSpeedLossScale scale({.initial_scale_power = 2, .hysteresis = 1, .min_loss_scale = 3});
  update(scale, {true});
  EXPECT_EQ(scale.scale(), 3);
  const auto before = scale.state();
  EXPECT_THAT(error_of([&] { scale.update(true); }), HasSubstr("at its minimum already: 3"));
  EXPECT_EQ(scale.state(), before);
}

TEST(DeepSpeedScale, GoesOnFromItsState) {
  const DeepSpeedScaleOptions options{.initial_scale_power = 6, .loss_scale_window = 2, .hysteresis = 3};
  DeepSpeedLossScale straight(options);
  update(straight, {true, false, true});
  DeepSpeedLossScale loaded(options);
  loaded.load_state(Json::parse(straight.state().dump()));
  for (int step = 0; step < 40; ++step) {
    straight.update(step % 7 == 3);
    loaded.update(step % 7 == 3);
    EXPECT_EQ(straight.state(), loaded.state());
  }
  EXPECT_THAT(error_of([&] { loaded.load_state({{"cur_scale", 4}}); }), HasSubstr("cur_iter"));
}

TEST(DeepSpeedScale, RefusesOptionsThatMakeNoSense) {
  const auto error = [](const DeepSpeedScaleOptions& options) {
    return error_of([&] { DeepSpeedLossScale scale(options); });
  };
  EXPECT_THAT(error({.initial_scale_power = -1}), HasSubstr("'initial_scale_power'"));
  EXPECT_THAT(error({.initial_scale_power = 400}), HasSubstr("'initial_scale_power'"));
  EXPECT_THAT(error({.loss_scale_window = 0}), HasSubstr("'loss_scale_window'"));
  EXPECT_THAT(error({.hysteresis = 0}), HasSubstr("'hysteresis'"));
  EXPECT_THAT(error({.min_loss_scale = 0}), HasSubstr("'min_loss_scale'"));
}

bool step_on_ones_or_nan(GradScaler& scaler, bool finite) {
  const bool take = scaler.unscale({torch::full({3}, finite ? 1.0F : NAN)});
  scaler.update();
  return take;
}

TEST(DeepSpeedScale, DrivesTheGradScaler) {
  const GradScalerOptions options{
      .deepspeed = DeepSpeedScaleOptions{.initial_scale_power = 3, .loss_scale_window = 4, .hysteresis = 2}};
  GradScaler scaler(options);
  EXPECT_EQ(scaler.scale(torch::ones({})).item<float>(), 8);
  EXPECT_FALSE(step_on_ones_or_nan(scaler, false));
  EXPECT_EQ(scaler.current_scale(), 8);
  // Without telling the host: what the rules decide is the same.
  scaler.unscale_on_device({torch::full({3}, NAN)}, Communicator());
  scaler.update();
  EXPECT_EQ(scaler.current_scale(), 4);
  EXPECT_EQ(scaler.skipped_steps(), 2);
  EXPECT_TRUE(step_on_ones_or_nan(scaler, true));
  EXPECT_EQ(scaler.growth_tracker(), 1);

  GradScaler loaded(options);
  loaded.load_state(Json::parse(scaler.state().dump()));
  EXPECT_EQ(loaded.current_scale(), 4);
  for (int i = 0; i < 5; ++i) {
    step_on_ones_or_nan(scaler, true);
    step_on_ones_or_nan(loaded, true);
  }
  EXPECT_EQ(scaler.current_scale(), 8);
  EXPECT_EQ(loaded.state(), scaler.state());
  EXPECT_THAT(error_of([&] { loaded.load_state(GradScaler().state()); }), HasSubstr("deepspeed"));
  EXPECT_EQ(loaded.state(), scaler.state());
}

TEST(DeepSpeedScale, StopsTheRunAtTheMinimum) {
  GradScaler scaler({.deepspeed = DeepSpeedScaleOptions{.initial_scale_power = 0, .hysteresis = 1}});
  EXPECT_FALSE(scaler.unscale({torch::full({3}, NAN)}));
  EXPECT_THAT(error_of([&] { scaler.update(); }), HasSubstr("minimum"));
}

TEST(GradScaler, AStaticScaleStaysAndStepsAreStillSkipped) {
  GradScaler scaler({.init_scale = 128, .growth_interval = 1, .dynamic = false});
  EXPECT_TRUE(step_on_ones_or_nan(scaler, true));
  EXPECT_FALSE(step_on_ones_or_nan(scaler, false));
  EXPECT_EQ(scaler.current_scale(), 128);
  EXPECT_EQ(scaler.skipped_steps(), 1);
}

}  // namespace
}  // namespace lockstep
