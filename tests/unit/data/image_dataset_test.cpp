#include <lockstep/data.h>
#include <lockstep/images.h>

#include <set>
#include <stdexcept>

#include "support/byte_images.h"
#include "support/config_error.h"

namespace lockstep {
namespace {

using test::ByteImages;
using test::error_of;
using test::kCifarTransform;
using testing::ElementsAre;
using testing::HasSubstr;
using Type = ImageTransform::Type;
using Layout = ImageTransform::Layout;

// The transform by ATen, one step after the other, of a uint8 [C, H, W].
at::Tensor transformed(const ImageTransform& transform, at::Tensor image, uint64_t seed) {
  const Augmentation drawn =
      draw_augmentation(transform, {static_cast<int>(image.size(1)), static_cast<int>(image.size(2))}, seed);
  if (transform.random_crop > 0) {
    const int64_t padding = transform.padding;
    image = at::constant_pad_nd(image, {padding, padding, padding, padding});
    image = image.slice(1, drawn.top, drawn.top + transform.random_crop)
                .slice(2, drawn.left, drawn.left + transform.random_crop);
  }
  if (drawn.flip) image = image.flip(2);
  image = image.to(at::kFloat).div(255);
  if (!transform.mean.empty()) {
    const at::Tensor mean = at::tensor(transform.mean).view({-1, 1, 1});
    image = image.sub(mean).div(at::tensor(transform.stddev).view({-1, 1, 1}));
  }
  return image;
}

TEST(ImageDataset, EqualsATenBitForBitInEveryTypeAndLayout) {
  const auto source = std::make_shared<ByteImages>(9, ImageSize{32, 32}, 3);
  const std::vector<int64_t> indices = {3, 0, 8, 3, 5};
  const SampleSeeds seeds(7, 2);
  for (const auto& [type, scalar] : {std::pair(ImageTransform::Type::kFloat32, at::kFloat),
                                     std::pair(ImageTransform::Type::kFloat16, at::kHalf),
                                     std::pair(ImageTransform::Type::kBFloat16, at::kBFloat16)}) {
    for (const auto layout :
         {ImageTransform::Layout::kChannelsFirst, ImageTransform::Layout::kChannelsLast}) {
      ImageTransform transform = kCifarTransform;
      transform.type = type;
      transform.layout = layout;
      const Batch batch = ImageDataset(source, transform).get_batch(indices, seeds);
      ASSERT_EQ(batch.tensors.size(), 2U);
      EXPECT_EQ(batch.data().sizes(), (std::vector<int64_t>{5, 3, 32, 32}));
      EXPECT_EQ(batch.data().scalar_type(), scalar);
      EXPECT_TRUE(batch.data().is_contiguous(layout == ImageTransform::Layout::kChannelsLast
                                                 ? at::MemoryFormat::ChannelsLast
                                                 : at::MemoryFormat::Contiguous));
      for (size_t i = 0; i < indices.size(); ++i) {
        const at::Tensor expected = transformed(transform, source->tensor(indices[i]), seeds.of(indices[i]));
        EXPECT_TRUE(at::equal(batch.data()[static_cast<int64_t>(i)], expected.to(scalar)));
      }
      EXPECT_EQ(batch.target().scalar_type(), at::kLong);
      EXPECT_TRUE(at::equal(batch.target(), at::tensor({3, 0, 8, 3, 5}, at::kLong).remainder(4)));
    }
  }
}

// All 2^32 would take a minute: each exponent with the digits around a tie.
TEST(ImageDataset, RoundsTo16BitsLikeATen) {
  const auto source = std::make_shared<ByteImages>(1, ImageSize{16, 16}, 1, /*counting=*/true);
  for (const float stddev : {1.0F, 0.3F, 255.0F, 1e-3F, 65504.0F, 1e6F, 1e-4F, 1e-38F, 1e30F}) {
    for (const auto& [type, scalar] : {std::pair(ImageTransform::Type::kFloat16, at::kHalf),
                                       std::pair(ImageTransform::Type::kBFloat16, at::kBFloat16)}) {
      const ImageTransform transform{.mean = {0.1307F}, .stddev = {stddev}, .type = type};
      const at::Tensor image = ImageDataset(source, transform).get(0, 0)[0];
      const at::Tensor expected = transformed(transform, source->tensor(0), 0).to(scalar);
      EXPECT_TRUE(at::equal(image.view(at::kShort), expected.view(at::kShort))) << stddev << " " << scalar;
    }
  }
}

TEST(ImageDataset, KeepsBytes) {
  const auto source = std::make_shared<ByteImages>(2, ImageSize{5, 7}, 3);
  const ImageDataset dataset(source, {.type = ImageTransform::Type::kUInt8});
  const Example example = dataset.get(1, 0);
  EXPECT_TRUE(at::equal(example[0], source->tensor(1)));
  EXPECT_EQ(example[1].item<int64_t>(), 1);
  EXPECT_THAT(dataset.image_shape(), testing::ElementsAre(3, 5, 7));
}

// The samples depend neither on threads nor on ranks.
TEST(ImageDataset, GivesTheSamePicturesForAnyNumberOfThreadsAndRanks) {
  const auto source = std::make_shared<ByteImages>(40, ImageSize{32, 32}, 3);
  const auto dataset = std::make_shared<const ImageDataset>(source, kCifarTransform);
  const auto sums_of = [&](int num_workers, int world_size) {
    std::map<std::string, int> pictures;  // the bytes of every sample of the epoch
    for (int rank = 0; rank < world_size; ++rank) {
      Loader loader =
          Loader(dataset, {.batch_size = 5, .shuffle = true, .seed = 3, .num_workers = num_workers})
              .shard(rank, world_size, ShardKind::kTrain);
      for (Batch& batch : loader.epoch(6)) {
        for (int64_t i = 0; i < batch.size(); ++i) {
          const at::Tensor image = batch.data()[i].contiguous();
          ++pictures[std::string(static_cast<const char*>(image.const_data_ptr()), image.nbytes())];
        }
      }
    }
    return pictures;
  };
  const auto one = sums_of(0, 1);
  EXPECT_EQ(one.size(), 40U);
  EXPECT_TRUE(one == sums_of(3, 1));
  EXPECT_TRUE(one == sums_of(2, 4));
}

TEST(ImageDataset, LooksDifferentInTheNextEpoch) {
  const auto source = std::make_shared<ByteImages>(4, ImageSize{32, 32}, 3);
  const ImageDataset dataset(source, kCifarTransform);
  const std::vector<int64_t> indices = {0, 1, 2, 3};
  const at::Tensor first = dataset.get_batch(indices, SampleSeeds(1, 0)).data();
  EXPECT_TRUE(at::equal(first, dataset.get_batch(indices, SampleSeeds(1, 0)).data()));
  EXPECT_FALSE(at::equal(first, dataset.get_batch(indices, SampleSeeds(1, 1)).data()));
}

TEST(ImageDataset, NamesTheSampleThatCannotBeUsed) {
  EXPECT_THAT(error_of([] { ImageDataset(nullptr, {}); }), HasSubstr("needs a source"));
  EXPECT_THAT(error_of([] {
                ImageDataset(std::make_shared<ByteImages>(0, ImageSize{2, 2}, 1), {});
              }),
              HasSubstr("has no images"));
  auto source = std::make_shared<ByteImages>(4, ImageSize{32, 32}, 3);
  source->set_size(2, {31, 32});
  source->fail_at(3);
  const ImageDataset dataset(source, {});
  const auto error_at = [&](int64_t index) {
    return error_of([&] { dataset.get_batch(std::vector<int64_t>{0, index}, SampleSeeds(0, 0)); });
  };
  EXPECT_THAT(error_at(2), HasSubstr("failed at sample 2"));
  EXPECT_THAT(error_at(2), HasSubstr("image 2 is 31x32 after its transform, image 0 is 32x32"));
  EXPECT_THAT(error_at(3), HasSubstr("failed at sample 3: broken image"));
  EXPECT_THAT(error_at(4), HasSubstr("no such sample: index=4, samples=4"));
  EXPECT_THAT(error_at(-1), HasSubstr("index=-1"));
}

// DeviceImageDataset uses only operators of ATen: the CPU as device tests the code for a GPU.
const c10::Device kDevice(c10::kCPU);

void expect_equal_bits(const std::shared_ptr<ByteImages>& source, const ImageTransform& transform) {
  const ImageDataset expected(source, transform);
  const DeviceImageDataset dataset(*source, transform, kDevice);
  ASSERT_EQ(dataset.size(), expected.size());
  std::vector<int64_t> indices;
  for (int64_t i = 0; i < 2 * source->size(); ++i) indices.push_back(i * 7 % source->size());
  const SampleSeeds seeds(11, 3);
  const Batch ours = dataset.get_batch(indices, seeds);
  const Batch theirs = expected.get_batch(indices, seeds);
  ASSERT_EQ(ours.tensors.size(), 2U);
  EXPECT_EQ(ours.data().scalar_type(), theirs.data().scalar_type());
  EXPECT_EQ(ours.data().strides(), theirs.data().strides());
  EXPECT_TRUE(at::equal(ours.data(), theirs.data()));
  EXPECT_TRUE(at::equal(ours.target(), theirs.target()));
}

TEST(DeviceImageDataset, EqualsTheCpuBitForBitInEveryTypeAndLayout) {
  const auto source = std::make_shared<ByteImages>(13, ImageSize{32, 32}, 3);
  for (const Type type : {Type::kFloat32, Type::kFloat16, Type::kBFloat16}) {
    for (const Layout layout : {Layout::kChannelsFirst, Layout::kChannelsLast}) {
      ImageTransform transform = kCifarTransform;
      transform.type = type;
      transform.layout = layout;
      expect_equal_bits(source, transform);
    }
  }
}

TEST(DeviceImageDataset, DoesEachStepAlone) {
  const auto source = std::make_shared<ByteImages>(5, ImageSize{19, 26}, 3);
  expect_equal_bits(source, {});
  expect_equal_bits(source, {.type = Type::kUInt8});
  expect_equal_bits(source, {.flip_probability = 1});
  expect_equal_bits(source, {.random_crop = 9});
  expect_equal_bits(source,
                    {.random_crop = 25, .padding = 3, .layout = Layout::kChannelsLast, .type = Type::kUInt8});
  expect_equal_bits(source, {.center_crop = 30, .random_crop = 12});
  expect_equal_bits(
      source, {.resize = 14, .center_crop = 14, .random_crop = 14, .padding = 2, .flip_probability = 0.5});
  const auto grey = std::make_shared<ByteImages>(3, ImageSize{28, 28}, 1);
  expect_equal_bits(grey, {.mean = {0.1307F}, .stddev = {0.3081F}});
}

// More pictures than are copied at a time.
TEST(DeviceImageDataset, TakesManyPictures) {
  expect_equal_bits(std::make_shared<ByteImages>(2500, ImageSize{4, 4}, 1), {.random_crop = 4, .padding = 1});
}

TEST(DeviceImageDataset, ServesALoader) {
  const auto source = std::make_shared<ByteImages>(20, ImageSize{32, 32}, 3);
  const LoaderOptions options{.batch_size = 6, .shuffle = true, .seed = 5};
  Loader ours(DeviceImageDataset(*source, kCifarTransform, kDevice), options);
  Loader theirs(ImageDataset(source, kCifarTransform), options);
  Loader::Epoch expected = theirs.epoch(2);
  for (Batch& batch : ours.epoch(2)) {
    Batch* other = expected.next();
    ASSERT_NE(other, nullptr);
    EXPECT_TRUE(at::equal(batch.data(), other->data()));
    EXPECT_TRUE(at::equal(batch.target(), other->target()));
  }
  EXPECT_EQ(expected.next(), nullptr);
}

TEST(DeviceImageDataset, GivesOneSample) {
  const auto source = std::make_shared<ByteImages>(4, ImageSize{32, 32}, 3);
  const Example ours = DeviceImageDataset(*source, kCifarTransform, kDevice).get(2, 99);
  const Example theirs = ImageDataset(source, kCifarTransform).get(2, 99);
  EXPECT_TRUE(at::equal(ours[0], theirs[0]));
  EXPECT_TRUE(at::equal(ours[1], theirs[1]));
}

TEST(DeviceImageDataset, RefusesWhatImageDatasetRefuses) {
  const ByteImages source(4, {8, 8}, 3);
  EXPECT_THAT(error_of([&] { DeviceImageDataset(source, {.random_crop = 9}, kDevice); }),
              HasSubstr("random_crop"));
  EXPECT_THAT(error_of([&] { DeviceImageDataset(source, {.flip_probability = 2}, kDevice); }),
              HasSubstr("flip_probability"));
  EXPECT_THAT(error_of([&] {
                DeviceImageDataset(source, {.mean = {1, 2}, .stddev = {1, 2}}, kDevice);
              }),
              HasSubstr("3 channel(s), mean and stddev are for 2"));
  EXPECT_THAT(error_of([&] {
                DeviceImageDataset(ByteImages(0, {8, 8}, 3), {}, kDevice);
              }),
              HasSubstr("no images"));
  const DeviceImageDataset dataset(source, {}, kDevice);
  EXPECT_THAT(error_of([&] {
                dataset.get_batch(std::vector<int64_t>{1, 4}, SampleSeeds(0, 0));
              }),
              HasSubstr("no such sample: index=4, samples=4"));
}

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
