#include <gmock/gmock.h>

#include "support/config_error.h"
#include "support/temporary_folder.h"
#include "unit/images/set_files.h"

namespace lockstep::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class TensorFiles : public testing::Test {
 protected:
  static constexpr int kCount = 4, kHeight = 5, kWidth = 6;
  static constexpr size_t kImageBytes = 3 * kHeight * kWidth;

  std::string write(const std::string& name, const std::string& bytes) {
    write_bytes(folder_.path() / name, bytes);
    return folder_.path() / name;
  }
  void check(const ImageSource& set, ImageView::Layout layout) {
    expect_colour_set(set, {.channels = 3, .height = kHeight, .width = kWidth, .layout = layout}, pixels_,
                      kCount);
  }
  std::string safetensors_error(const std::string& bytes) {
    return error_of([&] { open_safetensors(write("set.safetensors", bytes)); });
  }
  std::string npy_error(const std::string& images, const std::string& labels) {
    return error_of([&] { open_npy(write("images.npy", images), write("labels.npy", labels)); });
  }

  TemporaryFolder folder_;
  std::string pixels_ = pattern(kCount * kImageBytes);
  std::string labels_ = integers<int64_t>({0, 1, 2, 0});
};

TEST_F(TensorFiles, Safetensors) {
  const auto file = [&](const std::string& shape, const std::string& dtype, const std::string& labels) {
    return write("set.safetensors",
                 safetensors({{"images", "U8", shape, pixels_}, {"labels", dtype, "[4]", labels}}));
  };
  check(*open_safetensors(file("[4,3,5,6]", "I64", labels_)), ImageView::Layout::kPlanar);
  check(*open_safetensors(file("[4,5,6,3]", "I32", integers<int32_t>({0, 1, 2, 0}))),
        ImageView::Layout::kInterleaved);
  check(*open_safetensors(file("[4,3,5,6]", "U8", integers<uint8_t>({0, 1, 2, 0}))),
        ImageView::Layout::kPlanar);
}

TEST_F(TensorFiles, Npy) {
  const std::string images = write("images.npy", npy("|u1", "(4, 3, 5, 6)", pixels_));
  check(*open_npy(images, write("labels.npy", npy("<i8", "(4,)", labels_))), ImageView::Layout::kPlanar);
  check(*open_npy(images, write("labels.npy", npy("<u2", "(4,)", integers<uint16_t>({0, 1, 2, 0})))),
        ImageView::Layout::kPlanar);
}

TEST_F(TensorFiles, AnyTensorIsNamedByItsSource) {
  const std::string both = write("both.safetensors", safetensors({{"a", "U8", "[4,3,5,6]", pixels_},
                                                                  {"b", "U8", "[4,5,6,3]", pixels_},
                                                                  {"y", "I64", "[4]", labels_}}));
  check(*open_image_tensors(both + ":a", both), ImageView::Layout::kPlanar);
  check(*open_image_tensors(both + ":b", both + ":y"), ImageView::Layout::kInterleaved);
  EXPECT_THAT(error_of([&] { open_image_tensors(both, both); }),
              AllOf(HasSubstr("several tensors"), HasSubstr("a, b, y")));
  EXPECT_THAT(error_of([&] { open_image_tensors(both + ":c", both); }),
              HasSubstr("no tensor 'c'; it has a, b, y"));
}

TEST_F(TensorFiles, ThePartIsInTheName) {
  write("train.safetensors",
        safetensors({{"images", "U8", "[4,3,5,6]", pixels_}, {"labels", "I64", "[4]", labels_}}));
  check(*open_images(folder_.path(), Split::kTrain), ImageView::Layout::kPlanar);
  EXPECT_THAT(error_of([&] { open_images(folder_.path(), Split::kTest); }), HasSubstr("test part"));
  std::filesystem::remove(folder_.path() / "train.safetensors");
  for (const std::string part : {"train", "test"}) {
    write(part + "_images.npy", npy("|u1", "(4, 3, 5, 6)", pixels_));
    write(part + "_labels.npy", npy("<i8", "(4,)", labels_));
  }
  check(*open_images(folder_.path(), Split::kTest), ImageView::Layout::kPlanar);
  check(*open_images(folder_.path() / "train_images.npy", Split::kTest), ImageView::Layout::kPlanar);
  std::filesystem::remove(folder_.path() / "test_labels.npy");
  EXPECT_THAT(error_of([&] { open_images(folder_.path(), Split::kTest); }), HasSubstr("'labels'"));
}

TEST_F(TensorFiles, BrokenSafetensors) {
  const std::string good =
      safetensors({{"images", "U8", "[4,3,5,6]", pixels_}, {"labels", "I64", "[4]", labels_}});
  EXPECT_THAT(safetensors_error(good.substr(0, good.size() - 1)), HasSubstr("truncated or too long"));
  EXPECT_THAT(safetensors_error(good.substr(0, 20)), HasSubstr("not a safetensors file, or truncated"));
  EXPECT_THAT(safetensors_error(""), HasSubstr("no .npy, .npz or safetensors file"));
  EXPECT_THAT(safetensors_error(safetensors({{"labels", "I64", "[4]", labels_}})),
              AllOf(HasSubstr("'images'"), HasSubstr("none of this name")));
  EXPECT_THAT(safetensors_error(
                  safetensors({{"images", "I8", "[4,3,5,6]", pixels_}, {"labels", "I64", "[4]", labels_}})),
              HasSubstr("unsigned bytes"));
  EXPECT_THAT(safetensors_error(
                  safetensors({{"images", "U8", "[4,3,5,6]", pixels_}, {"labels", "F64", "[4]", labels_}})),
              HasSubstr("no integers: F64"));
  EXPECT_THAT(safetensors_error(safetensors(
                  {{"images", "U8", "[4,3,5,6]", pixels_}, {"labels", "I64", "[3]", labels_.substr(0, 24)}})),
              HasSubstr("not that of 4 labels"));
  EXPECT_THAT(safetensors_error(safetensors({{"images", "U8", "[4,3,5,6]", pixels_},
                                             {"labels", "I64", "[4]", integers<int64_t>({0, -5, 0, 0})}})),
              AllOf(HasSubstr("at byte"), HasSubstr("label -5")));
}

TEST_F(TensorFiles, BrokenNpy) {
  const std::string images = npy("|u1", "(4, 3, 5, 6)", pixels_), labels = npy("<i8", "(4,)", labels_);
  EXPECT_THAT(npy_error("no", labels), HasSubstr("no .npy, .npz or safetensors file"));
  EXPECT_THAT(npy_error(images.substr(0, images.size() - 1), labels), HasSubstr("359 bytes of data"));
  EXPECT_THAT(npy_error(images.substr(0, 20), labels), HasSubstr("it ends within"));
  EXPECT_THAT(npy_error(images, npy(">i8", "(4,)", labels_)), HasSubstr("'descr'"));
  EXPECT_THAT(npy_error(images, npy("<f8", "(4,)", labels_)), HasSubstr("no integers: F64"));
  EXPECT_THAT(npy_error(images, npy("<U8", "(1,)", labels_)), HasSubstr("'descr'"));
  EXPECT_THAT(npy_error(npy("|u1", "(4, 3, 5, 6)", pixels_, "True"), labels), HasSubstr("'fortran_order'"));
  EXPECT_THAT(npy_error(npy("|u1", "(9223372036854775807, 9, 9)", pixels_), labels),
              HasSubstr("not those of the shape"));
  EXPECT_THAT(npy_error(npy("|u1", "(4, 3, -5, 6)", pixels_), labels), HasSubstr("'shape'"));
  EXPECT_THAT(npy_error(npy("|u1", "()", pixels_), labels), HasSubstr("not those of the shape []"));
  EXPECT_THAT(npy_error(labels, images), HasSubstr("not unsigned bytes"));
  EXPECT_THAT(npy_error(npy("|u1", "(360,)", pixels_), labels), HasSubstr("is not one of images"));
}

}  // namespace
}  // namespace lockstep::test
