#include <lockstep/communicator.h>
#include <lockstep/optim.h>

#include <limits>

#include "support/group_case.h"

namespace lockstep {
namespace {

TEST(GradScalerRanks, OneRanksOverflowSkipsTheStepOfAll) {
  for (const char* backend : {"gloo", "shm"}) {
    test::run_group({backend, {0, 0, 0}}, [](Communicator& communicator) {
      GradScaler scaler({.growth_interval = 3});
      for (int i = 0; i < 6; ++i) {
        auto gradient = torch::ones({4});
        if (i == 1 && communicator.rank() == 2) gradient[3] = std::numeric_limits<float>::infinity();
        if (i == 2 && communicator.rank() == 0) gradient[0] = std::numeric_limits<float>::quiet_NaN();
        EXPECT_EQ(scaler.unscale({gradient}, communicator), i != 1 && i != 2) << "step " << i;
        scaler.update();
      }
      EXPECT_EQ(scaler.current_scale(), 65536 / 4 * 2);
      EXPECT_EQ(scaler.skipped_steps(), 2);
    });
  }
}

TEST(GradScalerRanks, OneRankSpeaksOfACollapse) {
  testing::internal::CaptureStderr();
  test::run_group({"shm", {0, 0}}, [](Communicator& communicator) {
    GradScaler scaler({.init_scale = 1});
    auto gradient = torch::full({4}, std::numeric_limits<float>::infinity());
    scaler.unscale({gradient}, communicator);
    scaler.update();
  });
  const std::string text = testing::internal::GetCapturedStderr();
  EXPECT_THAT(text, testing::HasSubstr("fell to 0.5"));
  EXPECT_EQ(text.find("fell"), text.rfind("fell"));
}

}  // namespace
}  // namespace lockstep
