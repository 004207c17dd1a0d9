#include <gmock/gmock.h>

#include "support/config_error.h"
#include "support/temporary_folder.h"
#include "unit/images/set_files.h"

namespace lockstep::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class Idx : public testing::Test {
 protected:
  ImageSet open(const std::string& image_bytes, const std::string& label_bytes, ImageClasses classes = {}) {
    write_bytes(images_, image_bytes);
    write_bytes(labels_, label_bytes);
    return open_idx(images_, labels_, std::move(classes));
  }
  std::string error(const std::string& image_bytes, const std::string& label_bytes,
                    ImageClasses classes = {}) {
    return error_of([&] { open(image_bytes, label_bytes, classes); });
  }

  TemporaryFolder folder_;
  std::filesystem::path images_ = folder_.path() / "images";
  std::filesystem::path labels_ = folder_.path() / "labels";
  std::string pixels_ = pattern(5 * 4 * 3);
  std::string good_images_ = idx({5, 4, 3}, pixels_);
  std::string good_labels_ = idx({5}, labels_up_to(5, 3));
};

TEST_F(Idx, PlainAndGzipGiveTheSameImages) {
  for (const bool packed : {false, true}) {
    const ImageSet set =
        packed ? open(gzip(good_images_), gzip(good_labels_)) : open(good_images_, good_labels_);
    ASSERT_EQ(set->size(), 5);
    EXPECT_EQ(set->num_classes(), 3);
    EXPECT_TRUE(set->class_names().empty());
    std::vector<uint8_t> scratch;
    const ImageView view = set->image(4, scratch);
    EXPECT_EQ(view.channels, 1);
    EXPECT_EQ(view.height, 4);
    EXPECT_EQ(view.width, 3);
    for (int i = 0; i < 5; ++i) {
      EXPECT_EQ(pixels_of(*set, i), pixels_.substr(static_cast<size_t>(i) * 12, 12));
      EXPECT_EQ(set->label(i), i % 3);
    }
  }
}

TEST_F(Idx, GzipFilesOneAfterTheOtherAreOne) {
  const ImageSet set = open(gzip(good_images_.substr(0, 30)) + gzip(good_images_.substr(30)), good_labels_);
  EXPECT_EQ(pixels_of(*set, 4), pixels_.substr(48));
}

TEST_F(Idx, NamesSayTheNumberOfClasses) {
  const ImageSet set = open(good_images_, good_labels_, {.names = {"a", "b", "c", "d"}});
  EXPECT_EQ(set->num_classes(), 4);
  EXPECT_EQ(set->class_names()[3], "d");
  EXPECT_THAT(error(good_images_, good_labels_, {.names = {"a", "b"}}),
              AllOf(HasSubstr(labels_.string()), HasSubstr("at byte 10"), HasSubstr("label 2")));
}

TEST_F(Idx, CutFilesNameTheByteWhereTheyEnd) {
  EXPECT_THAT(error(good_images_.substr(0, 50), good_labels_),
              AllOf(HasSubstr(images_.string()), HasSubstr("at byte 50"), HasSubstr("60 bytes")));
  EXPECT_THAT(error(good_images_.substr(0, 9), good_labels_), HasSubstr("within its header"));
  EXPECT_THAT(error("", good_labels_), HasSubstr("at byte 0"));
  EXPECT_THAT(error(good_images_, good_labels_.substr(0, 12)),
              AllOf(HasSubstr(labels_.string()), HasSubstr("at byte 12")));
  const std::string packed = gzip(good_images_);
  EXPECT_THAT(error(packed.substr(0, packed.size() - 9), good_labels_), HasSubstr("is cut"));
  EXPECT_THAT(error(packed.substr(0, 3), good_labels_), HasSubstr("is cut"));
}

TEST_F(Idx, BytesAfterTheEndAreAnError) {
  EXPECT_THAT(error(good_images_ + "x", good_labels_), HasSubstr("at byte 76"));
  EXPECT_THAT(error(gzip(good_images_ + "x"), good_labels_), HasSubstr("longer than its header says"));
  EXPECT_THAT(error(gzip(good_images_) + "x", good_labels_), HasSubstr("broken at byte"));
}

TEST_F(Idx, AChangedGzipByteIsNoticed) {
  std::string packed = gzip(good_images_);
  packed[packed.size() - 6] ^= 1;  // of the checksum
  EXPECT_THAT(error(packed, good_labels_), HasSubstr("incorrect data check"));
}

TEST_F(Idx, SwappedFilesAreNamed) {
  EXPECT_THAT(error(good_labels_, good_images_), AllOf(HasSubstr(images_.string()), HasSubstr("swapped")));
  EXPECT_THAT(error(gzip(good_labels_), good_images_), HasSubstr("swapped"));
  EXPECT_THAT(error(good_images_, good_images_), AllOf(HasSubstr(labels_.string()), HasSubstr("swapped")));
  EXPECT_THAT(error(good_images_, idx({4}, labels_up_to(4, 3))),
              AllOf(HasSubstr("4 labels for the 5 images"), HasSubstr(images_.string())));
}

TEST_F(Idx, HeadersThatLieAllocateNothing) {
  EXPECT_THAT(error(idx({0xffffffff, 0xffffffff, 0xffffffff}, pixels_), good_labels_),
              HasSubstr("more than a file of this size holds"));
  EXPECT_THAT(error(idx({0x7fffffff, 0xffff, 1}, pixels_), good_labels_), HasSubstr("the file ends"));
  EXPECT_THAT(error(gzip(idx({0x7fffffff, 0xffff, 1}, pixels_)), good_labels_),
              AllOf(HasSubstr("at byte 4"), HasSubstr("more than a file of this size holds")));
  EXPECT_THAT(error(idx({0, 4, 3}, ""), good_labels_), HasSubstr("empty"));
  EXPECT_THAT(error(idx({1, 1, 70'000}, std::string(70'000, 'x')), idx({1}, std::string(1, '\0'))),
              HasSubstr("too large"));
}

TEST_F(Idx, OtherFilesAreNone) {
  EXPECT_THAT(error("PNG", good_labels_), HasSubstr("within its header"));
  EXPECT_THAT(error("no image at all, but long", good_labels_), HasSubstr("no IDX file"));
  std::string floats = good_images_;
  floats[2] = 0x0d;
  EXPECT_THAT(error(floats, good_labels_), AllOf(HasSubstr("at byte 2"), HasSubstr("0x0d")));
  EXPECT_THAT(error_of([&] { open_idx(folder_.path(), labels_); }), HasSubstr("not a regular file"));
  EXPECT_THAT(error_of([&] { open_idx(folder_.path() / "none", labels_); }), HasSubstr("No such file"));
}

}  // namespace
}  // namespace lockstep::test
