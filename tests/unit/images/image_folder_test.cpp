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

// A picture that is recognisable by its first byte.
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

class TinyImagenet : public ImageFolder {
 protected:
  void SetUp() override {
    write("train/n02/images/n02_0.JPEG", 'x');
    write("train/n01/images/n01_0.JPEG", 'y');
    write_bytes(folder_.path() / "train/n01/n01_boxes.txt", "n01_0.JPEG\t0\t0\t62\t63\n");
    for (const char name : {'0', '1', '2'}) write(std::string("val/images/val_") + name + ".JPEG", name);
  }
  void annotate(const std::string& text) { write_bytes(folder_.path() / "val/val_annotations.txt", text); }
};

TEST_F(TinyImagenet, TheListTellsTheClassesOfTheValidationPart) {
  annotate("val_2.JPEG\tn01\t0\t32\t44\t62\nval_0.JPEG\tn02\t1\t2\t3\t4\r\n\nval_1.JPEG\tn02");
  EXPECT_EQ(contents(*open_image_folder(folder_.path(), Split::kTrain)), "0y 1x ");
  const ImageSet test = open_image_folder(folder_.path(), Split::kTest);
  EXPECT_EQ(contents(*test), "02 10 11 ");
  EXPECT_THAT(test->class_names(), ElementsAre("n01", "n02"));
  // The part alone, by the classes of its list.
  EXPECT_EQ(contents(*open_image_folder(folder_.path() / "val", Split::kTrain)), "02 10 11 ");
}

TEST_F(TinyImagenet, WhatIsWrongInTheListIsSaidWithItsLine) {
  const std::string good = "val_0.JPEG\tn01\n";
  const std::pair<const char*, const char*> cases[] = {
      {"val_1.JPEG n01", "no tab"},
      {"\tn01", "not the name of a"},
      {"val_1.txt\tn01", "not the name of a"},
      {"../../train/n01/images/n01_0.JPEG\tn01", "not the name of a"},
      {"val_\x1b[1;JPEG\tn01", "val_?[1;JPEG"},
      {"val_1.JPEG\t\t0", "not the name of a class"},
      {"val_1.JPEG\tn03", "'n03' is a class that the training part does not have"},
      {"val_9.JPEG\tn01", "there is no picture 'val_9.JPEG'"},
      {"val_0.JPEG\tn01", "is in line 1 too"},
  };
  for (const auto& [line, reason] : cases) {
    annotate(good + line + "\n");
    EXPECT_THAT(error(Split::kTest), AllOf(HasSubstr((folder_.path() / "val/val_annotations.txt").string()),
                                           HasSubstr("at line 2: "), HasSubstr(reason)));
  }
  annotate(good + std::string(1 << 20, 'x'));
  EXPECT_LT(error(Split::kTest).size(), 1000u) << "a long line is not shown whole";
  std::filesystem::remove_all(folder_.path() / "val/images");
  EXPECT_THAT(error(Split::kTest), HasSubstr("cannot read the folder"));
}

}  // namespace
}  // namespace lockstep::test
