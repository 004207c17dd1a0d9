#include <gmock/gmock.h>

#include <set>

#include "support/config_error.h"
#include "unit/images/set_files.h"

namespace lockstep::test {
namespace {

using testing::HasSubstr;

constexpr SyntheticSet kSet{.channels = 3,
                            .height = 20,
                            .width = 30,
                            .num_classes = 5,
                            .train_size = 200,
                            .test_size = 100,
                            .seed = 7};

int64_t distance(const std::string& a, const std::string& b) {
  int64_t sum = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const int difference = static_cast<uint8_t>(a[i]) - static_cast<uint8_t>(b[i]);
    sum += difference * difference;
  }
  return sum;
}

TEST(Synthetic, TheSameForASeed) {
  const ImageSet one = synthetic_images(kSet, Split::kTrain), two = synthetic_images(kSet, Split::kTrain);
  SyntheticSet other_seed = kSet;
  other_seed.seed = 8;
  const ImageSet other = synthetic_images(other_seed, Split::kTrain);
  std::set<std::string> images;
  for (int64_t i = 0; i < one->size(); ++i) {
    EXPECT_EQ(pixels_of(*one, i), pixels_of(*two, i));
    EXPECT_NE(pixels_of(*one, i), pixels_of(*other, i));
    images.insert(pixels_of(*one, i));
  }
  EXPECT_EQ(images.size(), 200);
  // On every machine: a change here changes what runs with a seed have seen.
  EXPECT_EQ(crc32(0, reinterpret_cast<const Bytef*>(pixels_of(*one, 17).data()), 1800), 2591977228U);
}

// The nearest of the first images of each class tells the class of all others, in both
// parts: what learns has something to learn.
TEST(Synthetic, ClassesCanBeTold) {
  const ImageSet train = synthetic_images(kSet, Split::kTrain), test = synthetic_images(kSet, Split::kTest);
  EXPECT_EQ(test->size(), 100);
  for (int64_t i = 0; i < test->size(); ++i) {
    int64_t nearest = 0;
    for (int64_t j = 0; j < kSet.num_classes; ++j) {
      const auto far = [&](int64_t k) { return distance(pixels_of(*test, i), pixels_of(*train, k)); };
      if (far(j) < far(nearest)) nearest = j;
    }
    EXPECT_EQ(train->label(nearest), test->label(i));
  }
}

TEST(Synthetic, ShapesThatCannotBe) {
  for (const SyntheticSet& set :
       {SyntheticSet{.channels = 2}, SyntheticSet{.height = 0}, SyntheticSet{.width = 1 << 30},
        SyntheticSet{.height = 60'000, .width = 60'000}, SyntheticSet{.num_classes = 0},
        SyntheticSet{.train_size = 0}}) {
    EXPECT_THAT(error_of([&] { synthetic_images(set, Split::kTrain); }), HasSubstr("no synthetic images"));
  }
}

}  // namespace
}  // namespace lockstep::test
