#include "support/overflow_schedule.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace lockstep::test {

void expect_overflow_schedule(Engine<BlockNetImpl>& engine,
                              const std::function<at::Tensor(int step)>& batch_of) {
  const Communicator& group = engine.communicator();
  const std::vector<bool> overflows = {false, true, true, true, false, false, false, true};
  const std::vector<double> scales = {16, 16, 8, 4, 4, 4, 8, 8};
  int64_t skipped = 0;
  for (size_t step = 0; step < overflows.size(); ++step) {
    const auto before = parameters_of(engine);
    const bool is_mine = overflows[step] && group.rank() == group.size() - 1;
    at::Tensor x = batch_of(static_cast<int>(step));
    if (is_mine) x = x * std::numeric_limits<double>::infinity();
    engine.backward(engine.forward(x).square().mean());
    engine.step();
    skipped += overflows[step] ? 1 : 0;
    EXPECT_EQ(engine.was_step_applied(), !overflows[step]) << "step " << step;
    EXPECT_EQ(engine.loss_scale(), scales[step]) << "step " << step;
    EXPECT_EQ(engine.skipped_steps(), skipped);
    EXPECT_EQ(std::isfinite(engine.get_global_grad_norm().value()), !overflows[step]);
    const auto after = parameters_of(engine);
    ASSERT_EQ(after.size(), before.size());
    for (size_t i = 0; overflows[step] && i < after.size(); ++i) {
      EXPECT_TRUE(same_bits(after[i], before[i])) << "step " << step << ", parameter " << i;
    }
    EXPECT_EQ(same_bits(after[0], before[0]), overflows[step]) << "step " << step;
  }
  EXPECT_EQ(engine.global_steps(), 8);
}

}  // namespace lockstep::test
