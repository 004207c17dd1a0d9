#include "images/known_sets.h"

#include "images/format_probe.h"
#include "images/image_folder.h"

namespace lockstep::images {
namespace {

using Path = std::filesystem::path;

constexpr SyntheticSet kGrey28{
    .channels = 1, .height = 28, .width = 28, .num_classes = 10, .train_size = 60'000, .test_size = 10'000};

KnownSet mnist() {
  return {.name = "mnist",
          .places = {"MNIST/raw", "mnist", "MNIST", ""},
          .installed = {},
          .probe =
              [](const Path& place, Split split) {
                return probe_idx(place, split, {{"0", "1", "2", "3", "4", "5", "6", "7", "8", "9"}});
              },
          .synthetic = kGrey28,
          .advice = "put MNIST's four files *-ubyte.gz into ./data/mnist, or name their folder with --data"};
}

KnownSet fashion_mnist() {
  return {.name = "fashion-mnist",
          .places = {"FashionMNIST/raw", "fashion-mnist", "fashion_mnist", "FashionMNIST", ""},
          .installed = {"/usr/share/datasets/fashion-mnist"},
          .probe =
              [](const Path& place, Split split) {
                return probe_idx(place, split,
                                 {{"T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt",
                                   "Sneaker", "Bag", "Ankle boot"}});
              },
          .synthetic = kGrey28,
          .advice =
              "install Debian's package dataset-fashion-mnist, or name the folder of the four files "
              "*-ubyte.gz with --data"};
}

std::vector<std::string> with_archives(const std::string& folder, const std::string& archive) {
  return {folder, archive + ".tar.gz", archive + ".tar.xz", archive + ".tar"};
}

KnownSet cifar10() {
  std::vector<std::string> places = with_archives("cifar-10-batches-bin", "cifar-10-binary");
  places.insert(places.end(),
                {"cifar-10", "cifar10", "cifar-10/cifar-10-batches-bin", "cifar10/cifar-10-batches-bin", ""});
  return {.name = "cifar10",
          .places = std::move(places),
          .installed = {},
          .probe = probe_cifar10,
          .synthetic = {.num_classes = 10},
          .advice =
              "fetch the binary version, cifar-10-binary.tar.gz, from "
              "https://www.cs.toronto.edu/~kriz/cifar.html into ./data, or name it with --data"};
}

KnownSet cifar100() {
  std::vector<std::string> places = with_archives("cifar-100-binary", "cifar-100-binary");
  places.insert(places.end(),
                {"cifar-100", "cifar100", "cifar-100/cifar-100-binary", "cifar100/cifar-100-binary", ""});
  return {.name = "cifar100",
          .places = std::move(places),
          .installed = {},
          .probe = probe_cifar100,
          .synthetic = {.num_classes = 100},
          .advice =
              "fetch the binary version, cifar-100-binary.tar.gz, from "
              "https://www.cs.toronto.edu/~kriz/cifar.html into ./data, or name it with --data"};
}

// The set as it is published has a list of its classes; any other folder of pictures must be
// named to be taken for it.
ImageSet probe_tiny_imagenet(const Path& place, Split split) {
  if (ImageSet set = probe_hdf5(place, split)) return set;
  std::error_code ignored;
  return std::filesystem::is_regular_file(place / "wnids.txt", ignored) ? probe_image_folder(place, split)
                                                                        : nullptr;
}

KnownSet tiny_imagenet() {
  return {
      .name = "tiny-imagenet",
      .places = {"tiny-imagenet", "tiny-imagenet-200", "tiny_imagenet", ""},
      .installed = {},
      .probe = probe_tiny_imagenet,
      .synthetic = {.height = 64, .width = 64, .num_classes = 200, .train_size = 100'000},
      .advice =
          "put an HDF5 file with the datasets images and labels into ./data/tiny-imagenet, or the "
          "unpacked tiny-imagenet-200.zip into ./data, or name a file or a folder of pictures with --data"};
}

}  // namespace

std::span<const KnownSet> known_sets() {
  static const std::vector<KnownSet> sets{mnist(), fashion_mnist(), cifar10(), cifar100(), tiny_imagenet()};
  return sets;
}

}  // namespace lockstep::images
