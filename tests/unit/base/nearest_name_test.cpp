#include "base/nearest_name.h"

#include <gtest/gtest.h>

namespace lockstep::base {
namespace {

const std::vector<std::string> kNames = {"sine", "mnist", "fashion-mnist", "cifar100", "vit"};

TEST(NearestNameTest, FindsTheOneWithTheFewestWrongLetters) {
  EXPECT_EQ(nearest_name("mnits", kNames), "mnist");
  EXPECT_EQ(nearest_name("fashion_mnist", kNames), "fashion-mnist");
  EXPECT_EQ(nearest_name("cifar10", kNames), "cifar100");
  EXPECT_EQ(nearest_name("vit", kNames), "vit");
}

TEST(NearestNameTest, SaysNothingWhereNothingIsNear) {
  EXPECT_EQ(nearest_name("imagenet", kNames), std::nullopt);
  EXPECT_EQ(nearest_name("", kNames), std::nullopt);
  EXPECT_EQ(nearest_name("x", {"vit"}), std::nullopt);
  EXPECT_EQ(nearest_name("mnist", {}), std::nullopt);
}

TEST(NearestNameTest, TakesTheFirstOfEquallyNearOnes) {
  EXPECT_EQ(nearest_name("--maxx", {"--max_a", "--max_b"}), "--max_a");
}

}  // namespace
}  // namespace lockstep::base
