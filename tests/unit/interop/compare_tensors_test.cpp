#include "interop/compare_tensors.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <limits>

namespace lockstep::interop {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
const double kNan = std::nan("");

TEST(CompareTensorsTest, EqualOnesAreEqualWhateverTheyHold) {
  const at::Tensor values = torch::tensor({1.0, -0.0, kNan, kInfinity, -kInfinity});
  EXPECT_EQ(compare_tensors(values, values.clone(), {}).elements, 0);
  EXPECT_EQ(compare_tensors(values.to(torch::kHalf), values, {}).elements, 0);
  EXPECT_EQ(compare_tensors(torch::ones({0, 3}), torch::ones({0, 3}), {}).elements, 0);
  EXPECT_EQ(compare_tensors(torch::ones({}, torch::kBool), torch::ones({}, torch::kBool), {}).elements, 0);
  const at::Tensor narrow = values.to(torch::kFloat8_e5m2);
  EXPECT_EQ(compare_tensors(narrow, narrow.clone(), {}).elements, 0);
}

TEST(CompareTensorsTest, TheLargestDifferencesAreTold) {
  const TensorDifference difference =
      compare_tensors(torch::tensor({1.0, 2.5, 100.0, 4.0}), torch::tensor({1.0, 2.0, 101.0, 4.0}), {});
  EXPECT_EQ(difference.elements, 2);
  EXPECT_EQ(difference.out_of_range, 2);
  EXPECT_DOUBLE_EQ(difference.max_absolute, 1.0);
  EXPECT_DOUBLE_EQ(difference.max_relative, 0.25);
}

TEST(CompareTensorsTest, ToleranceIsThatOfAllclose) {
  const at::Tensor a = torch::tensor({1.0, 2.5, 100.0});
  const at::Tensor b = torch::tensor({1.0, 2.0, 101.0});
  EXPECT_EQ(compare_tensors(a, b, {.relative = 0.01}).out_of_range, 1);
  EXPECT_EQ(compare_tensors(a, b, {.relative = 0.25}).out_of_range, 0);
  EXPECT_EQ(compare_tensors(a, b, {.absolute = 0.5}).out_of_range, 1);
  EXPECT_EQ(compare_tensors(a, b, {.absolute = 1}).out_of_range, 0);
}

TEST(CompareTensorsTest, NoToleranceLetsNanAndInfinityPass) {
  const Tolerance wide{.relative = 10, .absolute = 1e300};
  for (const double value : {kNan, kInfinity, -kInfinity}) {
    const TensorDifference difference =
        compare_tensors(torch::tensor({1.0}, torch::kDouble), torch::tensor({value}, torch::kDouble), wide);
    EXPECT_EQ(difference.out_of_range, 1) << value;
    EXPECT_EQ(difference.max_absolute, kInfinity) << value;
  }
  EXPECT_EQ(compare_tensors(torch::tensor({1.0}), torch::tensor({0.0}), {}).max_relative, kInfinity);
}

TEST(CompareTensorsTest, LargeIntegersAreNotRounded) {
  const int64_t large = (int64_t{1} << 60) + 1;
  const TensorDifference difference = compare_tensors(torch::tensor({large}), torch::tensor({large - 1}), {});
  EXPECT_EQ(difference.elements, 1);
}

TEST(CompareTensorsTest, ComplexAndStridedOnes) {
  const at::Tensor a = torch::complex(torch::ones({2, 3}), torch::zeros({2, 3})).t();
  EXPECT_EQ(compare_tensors(a, a.contiguous(), {}).elements, 0);
  EXPECT_DOUBLE_EQ(compare_tensors(a, a + c10::complex<double>(3, 4), {}).max_absolute, 5);
}

// More than are compared at once.
TEST(CompareTensorsTest, EveryPartOfALargeTensorCounts) {
  const at::Tensor a = torch::zeros({(int64_t{1} << 22) + 10}, torch::kByte);
  const at::Tensor b = a.clone();
  b[0] = 1;
  b[-1] = 7;
  const TensorDifference difference = compare_tensors(a, b, {});
  EXPECT_EQ(difference.elements, 2);
  EXPECT_DOUBLE_EQ(difference.max_absolute, 7);
}

}  // namespace
}  // namespace lockstep::interop
