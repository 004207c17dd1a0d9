// Two ranks against PyTorch's DistributedDataParallel, bit for bit on the architecture of the
// files. They come from golden/make_ddp_golden.py.

#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <sstream>

#include "support/golden.h"
#include "support/parity_training.h"

namespace lockstep::test {
namespace {

struct PortableKernels : testing::Environment {
  void SetUp() override { use_portable_kernels(); }
};

[[maybe_unused]] const auto* const kPortableKernels = testing::AddGlobalTestEnvironment(new PortableKernels);

class DdpGoldenTest : public testing::TestWithParam<std::string> {};

std::string read_golden(const std::string& name) {
  std::ifstream file(data_path("numeric/golden/" + name + ".bin"), std::ios::binary);
  std::ostringstream bytes;
  bytes << file.rdbuf();
  return bytes.str();
}

// The gradient of the bias before a batch normalisation is zero, except for rounding errors, and Adam
// scales these to full steps of 0.01. The running mean contains the bias.
bool follows_rounding_errors(const std::string& name, size_t index) {
  const bool is_bias = index >= 36 && index < 40;
  const bool is_running_mean = index >= 674 && index < 678;
  return name == "cnn_fused_adam" && (is_bias || is_running_mean);
}

double tolerance_of(const std::string& name, size_t index) {
  return kGoldenTolerance > 0 && follows_rounding_errors(name, index) ? 50 * 0.01 : kGoldenTolerance;
}

TEST_P(DdpGoldenTest, FiftyStepsEndWithTheSameBits) {
  const std::string golden = read_golden(GetParam());
  ASSERT_FALSE(golden.empty());
  const std::string ours = train_parity_case(GetParam());
  ASSERT_EQ(ours.size(), golden.size());
  size_t different = 0;
  double largest = 0;
  for (size_t i = 0; i < ours.size(); i += sizeof(float)) {
    float a = 0, b = 0;
    std::memcpy(&a, ours.data() + i, sizeof(float));
    std::memcpy(&b, golden.data() + i, sizeof(float));
    const double difference = std::abs(static_cast<double>(a) - b);
    const double tolerance = tolerance_of(GetParam(), i / sizeof(float));
    const bool equal = tolerance > 0 ? difference <= tolerance : std::memcmp(&a, &b, sizeof(float)) == 0;
    different += !equal;
    largest = std::max(largest, difference);
  }
  EXPECT_EQ(different, 0u) << "of " << ours.size() / sizeof(float) << " values, by at most " << largest;
}

INSTANTIATE_TEST_SUITE_P(Cases, DdpGoldenTest, testing::ValuesIn(portable_parity_cases()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace lockstep::test
