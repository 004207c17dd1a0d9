#include <gmock/gmock.h>

#include <thread>

#include "support/config_error.h"
#include "support/temporary_folder.h"
#include "unit/images/hdf5_files.h"
#include "unit/images/set_files.h"

namespace lockstep::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr hsize_t kCount = 9, kHeight = 5, kWidth = 4;
constexpr size_t kImageBytes = 3 * kHeight * kWidth;

class Hdf5 : public testing::Test {
 protected:
  std::string error() {
    return error_of([&] { open_hdf5(path_); });
  }
  void check(const ImageSource& set, ImageView::Layout layout) {
    ASSERT_EQ(set.size(), kCount);
    EXPECT_EQ(set.num_classes(), 3);
    std::vector<uint8_t> scratch;
    const ImageView view = set.image(0, scratch);
    EXPECT_EQ(view.channels, 3);
    EXPECT_EQ(view.height, kHeight);
    EXPECT_EQ(view.width, kWidth);
    EXPECT_EQ(view.layout, layout);
    for (size_t i = 0; i < kCount; ++i) {
      EXPECT_EQ(set.label(static_cast<int64_t>(i)), i % 3);
      EXPECT_EQ(pixels_of(set, static_cast<int64_t>(i)), pixels_.substr(i * kImageBytes, kImageBytes));
    }
  }
  // Good labels, and these images.
  void write(hid_t type, const std::vector<hsize_t>& shape, const void* data) {
    Hdf5Writer file(path_);
    file.add("images", type, shape, data);
    file.add("labels", H5T_STD_I64LE, {kCount}, labels_.data());
  }

  TemporaryFolder folder_;
  std::filesystem::path path_ = folder_.path() / "set.h5";
  std::string pixels_ = pattern(kCount * kImageBytes);
  std::vector<int64_t> labels_{0, 1, 2, 0, 1, 2, 0, 1, 2};
};

TEST_F(Hdf5, InChunks) {
  for (const unsigned deflate : {0, 6}) {
    {
      Hdf5Writer file(path_);
      file.add("images", H5T_STD_U8LE, {kCount, kHeight, kWidth, 3}, pixels_.data(), {2, kHeight, kWidth, 2},
               deflate);
      file.add("labels", H5T_STD_I64LE, {kCount}, labels_.data(), {4}, deflate);
    }
    check(*open_hdf5(path_), ImageView::Layout::kInterleaved);
  }
}

TEST_F(Hdf5, InOnePieceIsMapped) {
  for (const hsize_t user_block : {0, 512}) {
    {
      Hdf5Writer file(path_, user_block);
      file.add("images", H5T_STD_U8LE, {kCount, 3, kHeight, kWidth}, pixels_.data());
      file.add("labels", H5T_STD_I64LE, {kCount}, labels_.data());
    }
    const ImageSet set = open_hdf5(path_);
    check(*set, ImageView::Layout::kPlanar);
    std::vector<uint8_t> one, two;
    EXPECT_EQ(set->image(1, one).pixels, set->image(1, two).pixels);
    EXPECT_TRUE(one.empty());
  }
}

TEST_F(Hdf5, LabelsOfOtherTypes) {
  const std::vector<uint8_t> bytes(labels_.begin(), labels_.end());
  const std::vector<int32_t> words(labels_.begin(), labels_.end());
  const std::vector<hsize_t> column{kCount, 1};
  for (const bool is_byte : {false, true}) {
    {
      Hdf5Writer file(path_);
      file.add("images", H5T_STD_U8LE, {kCount, 3, kHeight, kWidth}, pixels_.data());
      if (is_byte) {
        file.add("labels", H5T_NATIVE_UINT8, {kCount}, bytes.data());
      } else {
        file.add("labels", H5T_NATIVE_INT32, column, words.data());
      }
    }
    check(*open_hdf5(path_), ImageView::Layout::kPlanar);
  }
}

TEST_F(Hdf5, ThreadsReadAtOnce) {
  {
    Hdf5Writer file(path_);
    file.add("images", H5T_STD_U8LE, {kCount, kHeight, kWidth, 3}, pixels_.data(), {1, kHeight, 1, 3}, 1);
    file.add("labels", H5T_STD_I64LE, {kCount}, labels_.data());
  }
  const ImageSet one = open_hdf5(path_), two = open_hdf5(path_);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int round = 0; round < 20; ++round)
        check(t % 2 == 0 ? *one : *two, ImageView::Layout::kInterleaved);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_F(Hdf5, OtherTypesAndShapes) {
  const std::vector<float> floats(kCount * kImageBytes);
  write(H5T_NATIVE_FLOAT, {kCount, 3, kHeight, kWidth}, floats.data());
  EXPECT_THAT(error(), AllOf(HasSubstr(path_.string()), HasSubstr("'images'"), HasSubstr("unsigned bytes")));
  write(H5T_STD_I8LE, {kCount, 3, kHeight, kWidth}, pixels_.data());
  EXPECT_THAT(error(), HasSubstr("unsigned bytes"));
  write(H5T_STD_U8LE, {kCount, kImageBytes}, pixels_.data());
  EXPECT_THAT(error(), HasSubstr("[9, 60] is not one of images"));
  write(H5T_STD_U8LE, {kCount, kHeight, 3, kWidth}, pixels_.data());
  EXPECT_THAT(error(), HasSubstr("is not one of images"));
  write(H5T_STD_U8LE, {kCount * 3, kHeight, kWidth}, pixels_.data());
  EXPECT_THAT(error(), AllOf(HasSubstr("'labels'"), HasSubstr("not that of 27 labels")));
  write(H5T_STD_U8LE, {0, kHeight, kWidth}, nullptr);
  EXPECT_THAT(error(), HasSubstr("is empty"));
  {
    Hdf5Writer file(path_);
    file.add("images", H5T_STD_U8LE, {kCount, 3, kHeight, kWidth}, pixels_.data());
    file.add("labels", H5T_NATIVE_FLOAT, {kCount}, floats.data());
  }
  EXPECT_THAT(error(), HasSubstr("no integers"));
  labels_[4] = -1;
  write(H5T_STD_U8LE, {kCount, 3, kHeight, kWidth}, pixels_.data());
  EXPECT_THAT(error(), AllOf(HasSubstr("entry 4"), HasSubstr("label -1")));
  labels_[4] = INT64_MAX;
  write(H5T_STD_U8LE, {kCount, 3, kHeight, kWidth}, pixels_.data());
  EXPECT_THAT(error(), HasSubstr("entry 4"));
}

TEST_F(Hdf5, WhatLiesElsewhereIsRefused) {
  write(H5T_STD_U8LE, {kCount, 3, kHeight, kWidth}, pixels_.data());
  const auto good = folder_.path() / "good.h5";
  std::filesystem::rename(path_, good);
  {
    Hdf5Writer file(path_);
    H5Lcreate_external(good.c_str(), "images", file.file(), "images", H5P_DEFAULT, H5P_DEFAULT);
  }
  EXPECT_THAT(error(), HasSubstr("a link"));
  {
    Hdf5Writer file(path_);
    const hid_t made = H5Pcreate(H5P_DATASET_CREATE);
    H5Pset_external(made, good.c_str(), 0, kCount * kImageBytes);
    file.add("images", H5T_STD_U8LE, {kCount, 3, kHeight, kWidth}, nullptr, made);
    H5Pclose(made);
  }
  EXPECT_THAT(error(), HasSubstr("in other files"));
  { const Hdf5Writer empty(path_); }
  EXPECT_THAT(error(), HasSubstr("no dataset of this name"));
  {
    Hdf5Writer file(path_);
    H5Gclose(H5Gcreate2(file.file(), "images", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
  }
  EXPECT_THAT(error(), HasSubstr("not a dataset"));
}

TEST_F(Hdf5, SizesThatLie) {
  {
    Hdf5Writer file(path_);
    file.add("images", H5T_STD_U8LE, {hsize_t{1} << 40, 3, 64, 64}, nullptr, {1, 3, 64, 64}, 1);
    file.add("labels", H5T_STD_I64LE, {hsize_t{1} << 40}, nullptr, {1024}, 1);
  }
  EXPECT_THAT(error(), HasSubstr("more than the"));
  {
    Hdf5Writer file(path_);
    file.add("images", H5T_STD_U8LE, {1 << 16, 64, 256}, nullptr, {1 << 16, 64, 256}, 1);
  }
  EXPECT_THAT(error(), HasSubstr("smaller ones"));
}

TEST_F(Hdf5, CutAndOtherFiles) {
  write(H5T_STD_U8LE, {kCount, 3, kHeight, kWidth}, pixels_.data());
  const auto whole = std::filesystem::file_size(path_);
  for (const uintmax_t size : {whole - 1, whole / 2, whole / 10, uintmax_t{0}}) {
    std::filesystem::resize_file(path_, size);
    EXPECT_THAT(error(), AllOf(HasSubstr(path_.string()), HasSubstr("no HDF5 file, or broken"))) << size;
  }
  EXPECT_THAT(error_of([&] { open_hdf5(folder_.path() / "none.h5"); }), HasSubstr("No such file"));
}

}  // namespace
}  // namespace lockstep::test
