#include <gmock/gmock.h>

#include "support/config_error.h"
#include "support/temporary_folder.h"
#include "unit/images/hdf5_files.h"
#include "unit/images/set_files.h"

namespace lockstep::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class Hdf5 : public testing::Test {
 protected:
  static constexpr hsize_t kCount = 9, kHeight = 5, kWidth = 4;
  static constexpr size_t kImageBytes = 3 * kHeight * kWidth;

  std::string error() {
    return error_of([&] { open_hdf5(path_); });
  }
  void check(const ImageSource& set, ImageView::Layout layout) {
    expect_colour_set(set, {.channels = 3, .height = kHeight, .width = kWidth, .layout = layout}, pixels_,
                      kCount);
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
  const std::vector<hsize_t> shape{kCount, kHeight, kWidth, 3};
  for (const std::vector<hsize_t>& chunk :
       {std::vector<hsize_t>{2, kHeight, kWidth, 3}, std::vector<hsize_t>{2, 3, kWidth, 2},
        std::vector<hsize_t>{20, 1, 1, 1}}) {
    for (const unsigned deflate : {0, 6}) {
      {
        Hdf5Writer file(path_);
        file.add("images", H5T_STD_U8LE, shape, pixels_.data(), chunk, deflate);
        file.add("labels", H5T_STD_I64LE, {kCount}, labels_.data(), {4}, deflate);
      }
      check(*open_hdf5(path_), ImageView::Layout::kInterleaved);
    }
  }
}

// A tree of several levels.
TEST_F(Hdf5, InManyChunks) {
  constexpr hsize_t kMany = 3000;
  const std::string pixels = pattern(kMany * 2);
  const std::vector<int64_t> labels(kMany, 1);
  {
    Hdf5Writer file(path_);
    file.add("images", H5T_STD_U8LE, {kMany, 1, 2}, pixels.data(), {1, 1, 2});
    file.add("labels", H5T_STD_I64LE, {kMany}, labels.data(), {1});
  }
  const ImageSet set = open_hdf5(path_);
  ASSERT_EQ(set->size(), kMany);
  for (size_t i = 0; i < kMany; ++i)
    ASSERT_EQ(pixels_of(*set, static_cast<int64_t>(i)), pixels.substr(2 * i, 2));
}

TEST_F(Hdf5, AllFiltersAndTheirChecksums) {
  {
    Hdf5Writer file(path_);
    const hid_t made = H5Pcreate(H5P_DATASET_CREATE);
    const hsize_t images_chunk[] = {3, 3, kHeight, kWidth}, labels_chunk[] = {5};
    H5Pset_chunk(made, 4, images_chunk);
    H5Pset_shuffle(made);
    H5Pset_deflate(made, 9);
    H5Pset_fletcher32(made);
    file.add_made("images", H5T_STD_U8LE, {kCount, 3, kHeight, kWidth}, pixels_.data(), made);
    H5Pset_chunk(made, 1, labels_chunk);
    file.add_made("labels", H5T_STD_I64LE, {kCount}, labels_.data(), made);
    H5Pclose(made);
  }
  check(*open_hdf5(path_), ImageView::Layout::kPlanar);
  {
    Hdf5Writer file(path_);
    const hid_t made = H5Pcreate(H5P_DATASET_CREATE);
    const hsize_t chunk[] = {3, 3, kHeight, kWidth};
    H5Pset_chunk(made, 4, chunk);
    H5Pset_fletcher32(made);
    file.add_made("images", H5T_STD_U8LE, {kCount, 3, kHeight, kWidth}, pixels_.data(), made);
    file.add("labels", H5T_STD_I64LE, {kCount}, labels_.data());
    H5Pclose(made);
  }
  check(*open_hdf5(path_), ImageView::Layout::kPlanar);
  std::string bytes = bytes_of(path_);
  const size_t at = bytes.find(pixels_.substr(3 * kImageBytes, kImageBytes));
  bytes[at + 7] ^= 1;
  write_bytes(path_, bytes);
  EXPECT_THAT(error(),
              AllOf(HasSubstr("at byte " + std::to_string(at)), HasSubstr("checksum does not match")));
}

TEST_F(Hdf5, TheNewestVersionInOnePiece) {
  {
    Hdf5Writer file(path_, 0, true);
    file.add("images", H5T_STD_U8LE, {kCount, 3, kHeight, kWidth}, pixels_.data());
    file.add("labels", H5T_STD_I64LE, {kCount}, labels_.data());
  }
  check(*open_hdf5(path_), ImageView::Layout::kPlanar);
  {
    Hdf5Writer file(path_, 0, true);
    file.add("images", H5T_STD_U8LE, {kCount, 3, kHeight, kWidth}, pixels_.data(), {1, 3, kHeight, kWidth});
  }
  EXPECT_THAT(error(), AllOf(HasSubstr("'images'"), HasSubstr("h5repack")));
  {
    Hdf5Writer file(path_, 0, true);
    for (int i = 0; i < 20; ++i) file.add(("x" + std::to_string(i)).c_str(), H5T_STD_U8LE, {1}, "x");
  }
  EXPECT_THAT(error(), AllOf(HasSubstr("an index that is not supported"), HasSubstr("h5repack")));
}

TEST_F(Hdf5, ManyObjectsBesideThem) {
  {
    Hdf5Writer file(path_);
    for (int i = 0; i < 300; ++i) file.add(("x" + std::to_string(i)).c_str(), H5T_STD_U8LE, {1}, "x");
    file.add("images", H5T_STD_U8LE, {kCount, 3, kHeight, kWidth}, pixels_.data());
    file.add("labels", H5T_STD_I64LE, {kCount}, labels_.data());
  }
  check(*open_hdf5(path_), ImageView::Layout::kPlanar);
}

TEST_F(Hdf5, WholeImagesAreMapped) {
  for (const hsize_t user_block : {0, 512}) {
    for (const std::vector<hsize_t>& chunk :
         {std::vector<hsize_t>{}, std::vector<hsize_t>{2, 3, kHeight, kWidth}}) {
      {
        Hdf5Writer file(path_, user_block);
        file.add("images", H5T_STD_U8LE, {kCount, 3, kHeight, kWidth}, pixels_.data(), chunk);
        file.add("labels", H5T_STD_I64LE, {kCount}, labels_.data());
      }
      const ImageSet set = open_hdf5(path_);
      check(*set, ImageView::Layout::kPlanar);
      // What another process writes to the file is seen: no copy was made.
      std::string bytes = bytes_of(path_);
      const size_t at = bytes.find(pixels_.substr(0, kImageBytes));
      std::fstream(path_, std::ios::in | std::ios::out | std::ios::binary)
          .seekp(static_cast<std::streamoff>(at))
          .put('!');
      EXPECT_EQ(pixels_of(*set, 0)[0], '!');
    }
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

TEST_F(Hdf5, OtherTypesAndShapes) {
  const std::vector<float> floats(kCount * kImageBytes);
  write(H5T_NATIVE_FLOAT, {kCount, 3, kHeight, kWidth}, floats.data());
  EXPECT_THAT(error(), AllOf(HasSubstr(path_.string()), HasSubstr("'images'"), HasSubstr("no integers")));
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
  EXPECT_THAT(error(), AllOf(HasSubstr("at byte"), HasSubstr("label -1 is not in")));
  {
    Hdf5Writer file(path_);
    file.add("images", H5T_STD_U8LE, {kCount, 3, kHeight, kWidth}, pixels_.data());
    file.add("labels", H5T_STD_U64LE, {kCount}, labels_.data(), {5});
  }
  EXPECT_THAT(error(), AllOf(HasSubstr("'labels': entry 4"), HasSubstr("label -1")));
  {
    Hdf5Writer file(path_);
    file.add("images", H5T_STD_U8LE, {kCount, 3, kHeight, kWidth}, pixels_.data());
    file.add("labels", H5T_STD_I64BE, {kCount}, labels_.data());
  }
  EXPECT_THAT(error(), HasSubstr("most significant byte first"));
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
    file.add_made("images", H5T_STD_U8LE, {kCount, 3, kHeight, kWidth}, nullptr, made);
    H5Pclose(made);
  }
  EXPECT_THAT(error(), HasSubstr("in other files"));
  { const Hdf5Writer empty(path_); }
  EXPECT_THAT(error(), HasSubstr("no dataset 'images'"));
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
  EXPECT_THAT(error(), HasSubstr("more than a file of"));
  {
    Hdf5Writer file(path_);
    file.add("images", H5T_STD_U8LE, {1 << 5, 8, 8}, nullptr, {1 << 16, 64, 256}, 1);
  }
  EXPECT_THAT(error(), AllOf(HasSubstr("chunks of 'images'"), HasSubstr("h5repack")));
  {
    Hdf5Writer file(path_);
    file.add("images", H5T_STD_U8LE, {1 << 5, 8, 8}, nullptr, {1, 8, 8}, 1);
  }
  EXPECT_THAT(error(), HasSubstr("never written"));
}

TEST_F(Hdf5, CutAndOtherFiles) {
  write(H5T_STD_U8LE, {kCount, 3, kHeight, kWidth}, pixels_.data());
  const auto whole = std::filesystem::file_size(path_);
  for (const uintmax_t size : {whole - 1, whole / 2, whole / 10, uintmax_t{0}}) {
    std::filesystem::resize_file(path_, size);
    EXPECT_THAT(error(), AllOf(HasSubstr(path_.string()), HasSubstr("is broken at byte"))) << size;
  }
  EXPECT_THAT(error_of([&] { open_hdf5(folder_.path() / "none.h5"); }), HasSubstr("No such file"));
}

}  // namespace
}  // namespace lockstep::test
