// GradScaler with everything on the GPU, and the optimizer's kernels that look at what it found.

#include <gtest/gtest.h>
#include <lockstep/communicator.h>
#include <lockstep/optim.h>
#include <torch/torch.h>

#include <limits>

#include "optim/fused_step.h"
#include "support/formula.h"
#include "support/gpu.h"

namespace lockstep {
namespace {

using test::NoHostWait;
using test::same_bits;

const std::vector<bool> kOverflows = {false, false, true,  true,  false, false,
                                      true,  false, false, false, false};
constexpr GradScalerOptions kOptions{.growth_interval = 2};

// What torch.amp.GradScaler makes of them.
struct Schedule {
  double scale = kOptions.init_scale;
  int64_t tracker = 0;
  int64_t skipped = 0;
  int64_t in_a_row = 0;

  void step(bool overflow) {
    skipped += overflow ? 1 : 0;
    in_a_row = overflow ? in_a_row + 1 : 0;
    tracker = overflow ? 0 : tracker + 1;
    if (overflow) scale *= kOptions.backoff_factor;
    if (tracker == kOptions.growth_interval) {
      scale *= kOptions.growth_factor;
      tracker = 0;
    }
  }
};

std::vector<at::Tensor> gradients(bool overflow, double scale, c10::Device device) {
  const at::Tensor first = torch::full({300}, 3.0 * scale, device);
  const at::Tensor second = torch::full({7}, -scale, device);
  if (overflow) second.slice(0, 6).fill_(std::numeric_limits<float>::infinity());
  return {first, second};
}

class GpuGradScalerTest : public test::GpuTest {};

TEST_F(GpuGradScalerTest, FollowsTheScheduleStepByStep) {
  const Communicator group = alone();
  GradScaler scaler(kOptions);
  Schedule expected;
  for (const bool overflow : kOverflows) {
    const at::Tensor loss = scaler.scale(torch::ones({}, device()));
    EXPECT_EQ(loss.item<double>(), expected.scale);
    const auto values = gradients(overflow, expected.scale, device());
    EXPECT_EQ(scaler.unscale(values, group), !overflow);
    if (!overflow) {
      EXPECT_TRUE(values[0].eq(3).all().item<bool>());
      EXPECT_TRUE(values[1].eq(-1).all().item<bool>());
    }
    scaler.update();
    expected.step(overflow);
    EXPECT_EQ(scaler.current_scale(), expected.scale);
    EXPECT_EQ(scaler.growth_tracker(), expected.tracker);
    EXPECT_EQ(scaler.skipped_steps(), expected.skipped);
    EXPECT_EQ(scaler.consecutive_skips(), expected.in_a_row);
  }
}

TEST_F(GpuGradScalerTest, OnTheDeviceTheHostNeverWaits) {
  const Communicator group = alone();
  GradScaler scaler(kOptions);
  Schedule expected;
  std::vector<std::vector<at::Tensor>> values;
  for (const bool overflow : kOverflows) {
    values.push_back(gradients(overflow, expected.scale, device()));
    expected.step(overflow);
  }
  const auto step = [&](size_t i) {
    scaler.scale(values[i][0]);
    scaler.unscale_on_device(values[i], group);
    scaler.update();
  };
  step(0);  // brings the scale and the counts to the device
  {
    const NoHostWait guard;
    for (size_t i = 1; i < values.size(); ++i) step(i);
  }
  EXPECT_EQ(scaler.skipped_steps(), expected.skipped);
  EXPECT_EQ(scaler.consecutive_skips(), expected.in_a_row);
  EXPECT_EQ(scaler.current_scale(), expected.scale);
  EXPECT_EQ(scaler.growth_tracker(), expected.tracker);
  EXPECT_TRUE(values.back()[0].eq(3).all().item<bool>());
}

// The proof that the guard above sees anything.
TEST_F(GpuGradScalerTest, TheAnswerOnTheHostIsAWait) {
  GradScaler scaler(kOptions);
  scaler.unscale(gradients(false, 1, device()));
  scaler.update();
  const NoHostWait guard;
  EXPECT_THROW(scaler.unscale(gradients(false, 1, device())), c10::Error);
}

// Each overflow is one rank's, another one each time: all ranks skip the step and move the scale.
TEST_F(GpuGradScalerTest, RanksAgreeOverNcclTwoRanks) {
  run_nccl(2, [&](World& world) {
    const Communicator& group = world.communicator();
    for (const bool on_device : {false, true}) {
      GradScaler scaler(kOptions);
      Schedule expected;
      for (size_t i = 0; i < kOverflows.size(); ++i) {
        const bool mine = kOverflows[i] && static_cast<int>(i) % group.size() == group.rank();
        const auto values = gradients(mine, expected.scale, device());
        EXPECT_EQ(scaler.scale(torch::ones({}, device())).item<double>(), expected.scale);
        if (on_device) {
          EXPECT_EQ(scaler.unscale_on_device(values, group).item<float>(), kOverflows[i] ? 1.0F : 0.0F);
        } else {
          EXPECT_EQ(scaler.unscale(values, group), !kOverflows[i]);
        }
        scaler.update();
        expected.step(kOverflows[i]);
        EXPECT_EQ(scaler.current_scale(), expected.scale) << "step " << i;
        EXPECT_EQ(scaler.skipped_steps(), expected.skipped) << "step " << i;
        EXPECT_EQ(scaler.growth_tracker(), expected.tracker) << "step " << i;
      }
    }
  });
}

TEST_F(GpuGradScalerTest, FusedOptimizersSkipOnTheDevice) {
  using Make = std::unique_ptr<torch::optim::Optimizer> (*)(std::vector<at::Tensor>);
  const std::vector<Make> makers = {
      [](std::vector<at::Tensor> p) -> std::unique_ptr<torch::optim::Optimizer> {
        return std::make_unique<torch::optim::SGD>(p, torch::optim::SGDOptions(0.1).momentum(0.9));
      },
      [](std::vector<at::Tensor> p) -> std::unique_ptr<torch::optim::Optimizer> {
        return std::make_unique<torch::optim::AdamW>(p, torch::optim::AdamWOptions(0.01));
      }};
  for (const Make& make : makers) {
    const auto parameter = [&] { return test::formula({300}, 1).to(device()).requires_grad_(); };
    const at::Tensor fused_parameter = parameter(), plain_parameter = parameter();
    const auto optimizer = make({fused_parameter});
    const auto plain = make({plain_parameter});
    const auto fused = optim::FusedStep::make(*optimizer);
    ASSERT_NE(fused, nullptr);
    for (size_t i = 0; i < kOverflows.size(); ++i) {
      const at::Tensor gradient = test::formula({300}, 10 + static_cast<int64_t>(i)).to(device());
      fused_parameter.mutable_grad() = gradient.clone();
      plain_parameter.mutable_grad() = gradient.clone();
      const at::Tensor before = fused_parameter.detach().clone();
      fused->prepare();
      fused->launch(torch::full({1}, kOverflows[i] ? 1.0F : 0.0F, device()));
      fused->count();
      if (kOverflows[i]) {
        EXPECT_TRUE(same_bits(fused_parameter.detach(), before)) << "step " << i;
      } else {
        plain->step();
        EXPECT_TRUE(torch::allclose(fused_parameter, plain_parameter, 1e-5, 1e-6)) << "step " << i;
      }
    }
    fused->fetch_counts();
    optimizer->step();  // with the optimizer's own count, which knows of the skipped steps
    plain->step();
    EXPECT_TRUE(torch::allclose(fused_parameter, plain_parameter, 1e-5, 1e-6));
  }
}

}  // namespace
}  // namespace lockstep
