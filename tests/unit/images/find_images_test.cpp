#include "images/find_images.h"

#include <gmock/gmock.h>

#include "support/config_error.h"
#include "support/temporary_folder.h"
#include "unit/images/hdf5_files.h"
#include "unit/images/picture_files.h"
#include "unit/images/set_files.h"

namespace lockstep::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class FindImageSet : public testing::Test {
 protected:
  ImageSet find(const std::string& name, const std::filesystem::path& path, Split split = Split::kTrain) {
    return images::find_images(name, path, split, environment_);
  }
  std::string error(const std::string& name, const std::filesystem::path& path, Split split = Split::kTrain) {
    return error_of([&] { find(name, path, split); });
  }
  void write_mnist(const std::filesystem::path& folder, uint32_t count, const std::string& suffix = "") {
    for (const std::string part : {"train", "t10k"}) {
      const std::string images = idx({count, 2, 2}, pattern(count * 4));
      const std::string labels = idx({count}, labels_up_to(static_cast<int>(count), 10));
      write_bytes(folder / (part + "-images-idx3-ubyte" + suffix), suffix.empty() ? images : gzip(images));
      write_bytes(folder / (part + "-labels-idx1-ubyte" + suffix), suffix.empty() ? labels : gzip(labels));
      ++count;
    }
  }

  TemporaryFolder folder_;
  std::filesystem::path root_ = folder_.path();
  base::Environment environment_{{"HOME", root_ / "home"}};
};

TEST_F(FindImageSet, TorchvisionsFoldersBelowADataPath) {
  write_mnist(root_ / "MNIST/raw", 3, ".gz");
  write_mnist(root_ / "FashionMNIST/raw", 5);
  EXPECT_EQ(find("mnist", root_)->size(), 3);
  EXPECT_EQ(find("mnist", root_, Split::kTest)->size(), 4);
  const ImageSet fashion = find("fashion-mnist", root_);
  EXPECT_EQ(fashion->size(), 5);
  EXPECT_EQ(fashion->num_classes(), 10);
  EXPECT_EQ(fashion->class_names()[9], "Ankle boot");
}

TEST_F(FindImageSet, PlainFilesComeBeforePacked) {
  write_mnist(root_ / "mnist", 3, ".gz");
  write_mnist(root_ / "mnist", 5);
  EXPECT_EQ(find("mnist", root_)->size(), 5);
  EXPECT_EQ(find("mnist", root_ / "mnist")->size(), 5);
}

TEST_F(FindImageSet, TheUsualPlacesInTheirOrder) {
  write_mnist(root_ / "home/.cache/mnist", 3);
  EXPECT_EQ(find("mnist", "")->size(), 3);
  write_mnist(root_ / "home/.cache/lockstep/MNIST/raw", 5);
  EXPECT_EQ(find("mnist", "")->size(), 5);
}

TEST_F(FindImageSet, TheVariableMeansWhatTheOptionMeans) {
  write_mnist(root_ / "home/.cache/mnist", 3);
  write_mnist(root_ / "shared/mnist", 5);
  write_mnist(root_ / "other", 7);
  environment_.set("LOCKSTEP_DATA", root_ / "shared");
  EXPECT_EQ(find("mnist", "")->size(), 5);
  EXPECT_EQ(find("mnist", root_ / "other")->size(), 7) << "the option wins";
  environment_.set("LOCKSTEP_DATA", root_ / "elsewhere");
  EXPECT_THAT(error("mnist", ""), AllOf(HasSubstr((root_ / "elsewhere/MNIST/raw").string()),
                                        testing::Not(HasSubstr((root_ / "home").string()))));
  EXPECT_THAT(error("fashion-mnist", ""), testing::Not(HasSubstr("/usr/share"))) << "nowhere else";
  environment_.set("LOCKSTEP_DATA", "synthetic");
  EXPECT_EQ(find("mnist", "")->size(), 60'000);
  environment_.set("LOCKSTEP_DATA", "");
  EXPECT_EQ(find("mnist", "")->size(), 3) << "set to nothing is not set";
}

TEST_F(FindImageSet, FashionMnistIsInstalled) {
  const ImageSet train = find("fashion-mnist", "");
  EXPECT_EQ(train->size(), 60'000);
  EXPECT_EQ(train->label(0), 9);
  EXPECT_EQ(find("fashion-mnist", "", Split::kTest)->size(), 10'000);
}

TEST_F(FindImageSet, CifarAsFolderAndAsArchive) {
  write_bytes(root_ / "cifar-100-binary/train.bin", cifar_records(3, 100));
  EXPECT_EQ(find("cifar100", root_)->size(), 3);
  EXPECT_EQ(find("cifar100", root_ / "cifar-100-binary")->size(), 3);
  const auto archive = root_ / "home/.cache/cifar-100-binary.tar.gz";
  write_bytes(archive, tar({{"cifar-100-binary/train.bin", cifar_records(4, 100)}}, ARCHIVE_FILTER_GZIP));
  EXPECT_EQ(find("cifar100", archive)->size(), 4);
  EXPECT_EQ(find("cifar100", "")->size(), 4);
  // As torchvision fills a folder: the archive and the unpacked pickles.
  const auto torchvision = root_ / "torchvision";
  write_bytes(torchvision / "cifar-100-python/train", pickled_dict(cifar_pickle(5, 100)));
  write_bytes(torchvision / "cifar-100-python/meta",
              pickled_dict({{"fine_label_names", pickled_names("fine", 100)}}));
  EXPECT_EQ(find("cifar100", torchvision)->size(), 5);
  EXPECT_EQ(find("cifar100", torchvision / "cifar-100-python")->size(), 5);
}

TEST_F(FindImageSet, SyntheticHasTheShapeOfTheSet) {
  struct Case {
    const char* name;
    int channels, height;
    int64_t num_classes, train, test;
  };
  for (const Case& expected :
       {Case{"mnist", 1, 28, 10, 60'000, 10'000}, Case{"fashion-mnist", 1, 28, 10, 60'000, 10'000},
        Case{"cifar10", 3, 32, 10, 50'000, 10'000}, Case{"cifar100", 3, 32, 100, 50'000, 10'000},
        Case{"tiny-imagenet", 3, 64, 200, 100'000, 10'000}}) {
    const ImageSet set = find(expected.name, "synthetic");
    std::vector<uint8_t> scratch;
    const ImageView view = set->image(0, scratch);
    EXPECT_EQ(view.channels, expected.channels);
    EXPECT_EQ(view.height, expected.height);
    EXPECT_EQ(view.width, expected.height);
    EXPECT_EQ(set->num_classes(), expected.num_classes);
    EXPECT_EQ(set->size(), expected.train);
    EXPECT_EQ(find(expected.name, "synthetic", Split::kTest)->size(), expected.test);
  }
}

TEST_F(FindImageSet, Hdf5ByTheNameOfItsPart) {
  const std::vector<int64_t> labels{0, 1, 2, 1};
  const auto write = [&](const std::string& name, hsize_t count) {
    std::filesystem::create_directories((root_ / name).parent_path());
    Hdf5Writer file(root_ / name);
    file.add("images", H5T_STD_U8LE, {count, 2, 2, 3}, pattern(48).data());
    file.add("labels", H5T_STD_I64LE, {count}, labels.data());
  };
  // One file alone is the training part, and has no other.
  write("tiny-imagenet/all.hdf5", 2);
  EXPECT_EQ(find("tiny-imagenet", root_)->size(), 2);
  EXPECT_EQ(find("tiny-imagenet", root_ / "tiny-imagenet/all.hdf5")->size(), 2);
  EXPECT_THAT(error("tiny-imagenet", root_, Split::kTest), HasSubstr("the test part"));
  write("tiny-imagenet/train_images.h5", 3);
  write("tiny-imagenet/val_images.h5", 4);
  EXPECT_EQ(find("tiny-imagenet", root_)->size(), 3);
  EXPECT_EQ(find("tiny-imagenet", root_, Split::kTest)->size(), 4);
  EXPECT_EQ(find("tiny-imagenet", root_ / "tiny-imagenet/train_images.h5", Split::kTest)->size(), 4);
  write("tiny-imagenet/train_other.h5", 2);
  EXPECT_THAT(error("tiny-imagenet", root_), HasSubstr("two sets in one folder"));
  EXPECT_EQ(find("tiny-imagenet", root_ / "tiny-imagenet/train_other.h5")->size(), 2);
}

TEST_F(FindImageSet, TinyImagenetAsItIsPublished) {
  const auto set = root_ / "home/.cache/tiny-imagenet-200";
  write_bytes(set / "train/n01/images/n01_0.JPEG", jpeg(std::string(12, 'x'), 2, 2));
  write_bytes(set / "val/images/val_0.JPEG", jpeg(std::string(12, 'x'), 2, 2));
  write_bytes(set / "val/val_annotations.txt", "val_0.JPEG\tn01\t0\t0\t1\t1\n");
  EXPECT_THAT(error("tiny-imagenet", ""), HasSubstr("tiny-imagenet-200.zip"));
  write_bytes(set / "wnids.txt", "n01\n");
  EXPECT_EQ(find("tiny-imagenet", "")->size(), 1);
  EXPECT_EQ(find("tiny-imagenet", "", Split::kTest)->size(), 1);
}

TEST_F(FindImageSet, ADataPathMayBeOfAnyFormat) {
  write_bytes(root_ / "train/cat/1.png", png(std::string(12, 'x'), 2, 2));
  EXPECT_EQ(find("cifar100", root_)->class_names()[0], "cat");
  EXPECT_EQ(open_images(root_, Split::kTrain)->size(), 1);
  EXPECT_THAT(error_of([&] { open_images(root_, Split::kTest); }),
              AllOf(HasSubstr("test part"), HasSubstr(root_.string()), HasSubstr(".jpg")));
}

TEST_F(FindImageSet, ADataPathIsTheOnlyPlace) {
  write_mnist(root_ / "home/.cache/mnist", 3);
  EXPECT_THAT(error("mnist", root_ / "elsewhere"),
              AllOf(HasSubstr((root_ / "elsewhere/MNIST/raw").string()), HasSubstr("--data"),
                    testing::Not(HasSubstr((root_ / "home").string()))));
}

TEST_F(FindImageSet, TheErrorListsEveryPlace) {
  EXPECT_THAT(
      error("cifar10", ""),
      AllOf(HasSubstr("the training part of cifar10"), HasSubstr("\n  data/cifar-10-batches-bin"),
            HasSubstr((root_ / "home/.cache/lockstep").string()), HasSubstr("cifar-10-binary.tar.gz")));
  EXPECT_THAT(error("imagenet", ""),
              AllOf(HasSubstr("'imagenet'"), HasSubstr("mnist, fashion-mnist, cifar10, cifar100")));
}

TEST_F(FindImageSet, AHalfSetSaysWhatIsMissing) {
  write_mnist(root_, 3);
  std::filesystem::remove(root_ / "t10k-labels-idx1-ubyte");
  EXPECT_THAT(error("mnist", root_, Split::kTest), HasSubstr("no file of labels"));
  std::filesystem::remove(root_ / "t10k-images-idx3-ubyte");
  EXPECT_THAT(error("mnist", root_, Split::kTest), HasSubstr("the test part of mnist"));
  write_bytes(root_ / "emnist-train-images-idx3-ubyte", "");
  EXPECT_THAT(error("mnist", root_), HasSubstr("two sets in one folder"));
}

}  // namespace
}  // namespace lockstep::test
