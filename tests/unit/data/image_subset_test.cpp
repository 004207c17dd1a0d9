#include <lockstep/image_subset.h>

#include <set>

#include "support/config_error.h"

namespace lockstep {
namespace {

using test::error_of;
using testing::ElementsAre;
using testing::HasSubstr;

// Image i is one pixel of value i, its label the remainder by three.
class Pixels : public ImageSource {
 public:
  explicit Pixels(int64_t size) : size_(size) {}

  int64_t size() const override { return size_; }
  int64_t label(int64_t index) const override { return index % 3; }
  int64_t num_classes() const override { return 3; }
  ImageView image(int64_t index, std::vector<uint8_t>& scratch) const override {
    scratch = {static_cast<uint8_t>(index)};
    return {.pixels = scratch.data(), .channels = 1, .height = 1, .width = 1};
  }

 private:
  int64_t size_;
};

std::vector<int> values_of(const ImageSource& source) {
  std::vector<int> values;
  std::vector<uint8_t> scratch;
  for (int64_t i = 0; i < source.size(); ++i) {
    values.push_back(*source.image(i, scratch).pixels);
    EXPECT_EQ(source.label(i), values.back() % 3);
  }
  return values;
}

TEST(ImageSubsetTest, TakesTheImagesInTheGivenOrder) {
  const auto pixels = std::make_shared<const Pixels>(10);
  EXPECT_THAT(values_of(*image_subset(pixels, {7, 0, 7})), ElementsAre(7, 0, 7));
  EXPECT_EQ(image_subset(pixels, {1})->num_classes(), 3);
  EXPECT_THAT(error_of([&] { image_subset(pixels, {0, 10}); }), HasSubstr("image 10 is not in a set of 10"));
  EXPECT_THAT(error_of([&] { image_subset(pixels, {-1}); }), HasSubstr("image -1"));
  EXPECT_THAT(error_of([] { image_subset(nullptr, {}); }), HasSubstr("no set of images"));
}

TEST(ImageSubsetTest, TakesTheFirstOnes) {
  const auto pixels = std::make_shared<const Pixels>(4);
  EXPECT_THAT(values_of(*first_images(pixels, 3)), ElementsAre(0, 1, 2));
  EXPECT_EQ(first_images(pixels, 4), pixels);
  EXPECT_EQ(first_images(pixels, 100), pixels);
}

// Written by torch.utils.data.random_split of PyTorch 2.11 with
// generator=torch.Generator().manual_seed(seed).
TEST(ImageSubsetTest, SplitsAsPythonDoes) {
  const ImageSplit ten = split_images(std::make_shared<const Pixels>(10), 0.8, 0);
  EXPECT_THAT(values_of(*ten.train), ElementsAre(4, 1, 7, 5, 3, 9, 0, 8));
  EXPECT_THAT(values_of(*ten.validation), ElementsAre(6, 2));
  const ImageSplit seven = split_images(std::make_shared<const Pixels>(7), 0.5, 42);
  EXPECT_THAT(values_of(*seven.train), ElementsAre(1, 6, 3));
  EXPECT_THAT(values_of(*seven.validation), ElementsAre(5, 4, 0, 2));
}

TEST(ImageSubsetTest, NoImageIsOnBothSidesAndNoneIsLost) {
  const ImageSplit split = split_images(std::make_shared<const Pixels>(200), 0.8, 7);
  std::multiset<int> all;
  for (const int value : values_of(*split.train)) all.insert(value);
  for (const int value : values_of(*split.validation)) all.insert(value);
  EXPECT_EQ(all.size(), 200u);
  EXPECT_EQ(std::set<int>(all.begin(), all.end()).size(), 200u);
}

TEST(ImageSubsetTest, AnEmptyPartIsRefused) {
  const auto pixels = std::make_shared<const Pixels>(3);
  for (const double fraction : {0.0, 0.2, 1.0, -1.0, std::nan("")}) {
    EXPECT_THAT(error_of([&] { split_images(pixels, fraction, 0); }),
                HasSubstr("3 images cannot be cut in two"));
  }
}

}  // namespace
}  // namespace lockstep
