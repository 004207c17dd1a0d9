#include <gmock/gmock.h>

#include "support/config_error.h"
#include "support/temporary_folder.h"
#include "unit/images/picture_files.h"
#include "unit/images/set_files.h"

namespace lockstep::test {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

// A picture that its first byte tells apart.
std::string picture(char value) { return png(std::string(2 * 3 * 3, value), 2, 3); }

class ImageFolder : public testing::Test {
 protected:
  void write(const std::string& file, char value) { write_bytes(folder_.path() / file, picture(value)); }
  std::string error(Split split) {
    return error_of([&] { open_image_folder(folder_.path(), split); });
  }

  TemporaryFolder folder_;
};

// "labels and values", in the order of the set.
std::string contents(const ImageSource& set) {
  std::string text;
  for (int64_t i = 0; i < set.size(); ++i) {
    text += std::to_string(set.label(i)) + pixels_of(set, i).substr(0, 1) + " ";
  }
  return text;
}

TEST_F(ImageFolder, ClassesAndFilesAreSorted) {
  write("dog/b.png", 'b');
  write("dog/a.PNG", 'a');
  write("cat/2.png", '2');
  write("cat/10.png", '1');
  write("cat/more/0.png", '0');
  write_bytes(folder_.path() / "cat/notes.txt", "not a picture");
  write_bytes(folder_.path() / ".git/x.png", "hidden");
  write_bytes(folder_.path() / "cat/3.jpeg", jpeg(std::string(12, '3'), 2, 2));
  const ImageSet set = open_image_folder(folder_.path(), Split::kTrain);
  EXPECT_THAT(set->class_names(), ElementsAre("cat", "dog"));
  EXPECT_EQ(set->num_classes(), 2);
  EXPECT_EQ(contents(*set), "01 02 03 00 1a 1b ");
  EXPECT_THAT(error(Split::kTest), HasSubstr("val or test"));
}

TEST_F(ImageFolder, PartsHaveTheClassesOfTraining) {
  write("train/a/1.png", '1');
  write("train/b/2.png", '2');
  write("train/c/3.png", '3');
  write("val/c/4.png", '4');
  EXPECT_EQ(contents(*open_image_folder(folder_.path(), Split::kTrain)), "01 12 23 ");
  const ImageSet test = open_image_folder(folder_.path(), Split::kTest);
  EXPECT_EQ(contents(*test), "24 ");
  EXPECT_EQ(test->num_classes(), 3);
  write("val/d/5.png", '5');
  EXPECT_THAT(error(Split::kTest), AllOf(HasSubstr("val/d"), HasSubstr("training part does not have")));
}

TEST_F(ImageFolder, AClassWithoutPicturesIsAnError) {
  write("a/1.png", '1');
  std::filesystem::create_directories(folder_.path() / "b");
  EXPECT_THAT(error(Split::kTrain), HasSubstr((folder_.path() / "b").string()));
}

TEST_F(ImageFolder, AFolderOfOtherThingsIsNone) {
  EXPECT_THAT(error(Split::kTrain), HasSubstr(folder_.path().string()));
  write_bytes(folder_.path() / "a/x.txt", "text");
  EXPECT_THAT(error(Split::kTrain), HasSubstr("no folder for each class"));
}

TEST_F(ImageFolder, ABrokenPictureNamesItsFile) {
  write("a/1.png", '1');
  write_bytes(folder_.path() / "a/2.png", picture('2').substr(0, 60));
  const ImageSet set = open_image_folder(folder_.path(), Split::kTrain);
  EXPECT_EQ(pixels_of(*set, 0), std::string(18, '1'));
  EXPECT_THAT(error_of([&] { pixels_of(*set, 1); }),
              AllOf(HasSubstr((folder_.path() / "a/2.png").string()), HasSubstr("at byte")));
  std::filesystem::remove(folder_.path() / "a/2.png");
  EXPECT_THAT(error_of([&] { pixels_of(*set, 1); }), HasSubstr("No such file"));
}

TEST_F(ImageFolder, LinksInACircleEnd) {
  write("a/1.png", '1');
  std::filesystem::create_directory_symlink(folder_.path() / "a", folder_.path() / "a/again");
  const ImageSet set = open_image_folder(folder_.path(), Split::kTrain);
  EXPECT_GE(set->size(), 1);
  EXPECT_LE(set->size(), 10);
}

}  // namespace
}  // namespace lockstep::test
