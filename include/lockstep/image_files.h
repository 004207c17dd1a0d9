#pragma once

#include <lockstep/image_source.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

// Labelled image sets from files. What these functions return may be read by any number
// of threads. A file that is cut, swapped with another, larger or smaller than its header
// says, or of labels out of range is a ConfigError that names the file and the place in
// it; nothing larger than the file can fill is allocated before it is read.
//
// Plain files are mapped into memory: the processes of a node share one copy. What is
// compressed is unpacked into the memory of each process.

using ImageSet = std::shared_ptr<const ImageSource>;

enum class Split { kTrain, kTest };

// The classes of a file that does not say them: their names, or their number where there
// are none; 0: one more than the largest label.
struct ImageClasses {
  std::vector<std::string> names;
  int64_t count = 0;
};

// IDX, as MNIST and Fashion-MNIST come, plain or gzip.
ImageSet open_idx(const std::filesystem::path& images_path, const std::filesystem::path& labels_path,
                  ImageClasses classes = {});

// CIFAR's binary version: the folder with the .bin files, or the archive that holds it
// (tar, plain or compressed).
ImageSet open_cifar10(const std::filesystem::path& path, Split split);
enum class Cifar100Labels { kFine, kCoarse };
ImageSet open_cifar100(const std::filesystem::path& path, Split split,
                       Cifar100Labels labels = Cifar100Labels::kFine);

// HDF5 with the datasets images (unsigned bytes: [n, height, width], [n, 3, height, width]
// or [n, height, width, 3]; 1 channel too) and labels (integers: [n]). Data in one
// piece or in chunks that are whole images is mapped; other chunks are unpacked.
ImageSet open_hdf5(const std::filesystem::path& path, ImageClasses classes = {});

// Tensors of the same shapes as they lie in memory: images and labels of one safetensors
// file, or two .npy files. Mapped.
ImageSet open_safetensors(const std::filesystem::path& path, ImageClasses classes = {});
ImageSet open_npy(const std::filesystem::path& images_path, const std::filesystem::path& labels_path,
                  ImageClasses classes = {});

// A folder for each class with .jpg, .jpeg and .png pictures, in root itself or in
// root/train, and root/val or else root/test. Classes are in the order of their names, and
// those of the training part in both. A part may also be Tiny ImageNet's: pictures in its
// folder `images`, and val_annotations.txt beside it, which tells their classes line by line.
// Pictures are decoded when they are asked for, to red, green and blue; their sizes may differ.
ImageSet open_image_folder(const std::filesystem::path& root, Split split);

// Images that are made when they are asked for, the same for a seed on any machine. Each
// class has a pattern of its own, with noise on it: what learns, learns it.
struct SyntheticSet {
  int channels = 3;  // or 1
  int height = 32;
  int width = 32;
  int64_t num_classes = 10;
  int64_t train_size = 50'000;
  int64_t test_size = 10'000;
  uint64_t seed = 0;
};
ImageSet synthetic_images(const SyntheticSet& set, Split split);

// Any of the formats, told apart by the names of the files.
ImageSet open_images(const std::filesystem::path& path, Split split);

// A set by its name: mnist, fashion-mnist, cifar10, cifar100, tiny-imagenet.
//
// With a data path the set must be there, and is looked for nowhere else: the path itself or
// a usual folder below it, or any set that open_images takes. The path "synthetic" gives
// synthetic images of the set's shape, classes and sizes. An empty path is that of the
// variable LOCKSTEP_DATA, where it is set.
// Without either it is looked for under ./data, ~/.cache/lockstep and ~/.cache;
// fashion-mnist last of all in Debian's package dataset-fashion-mnist.
// ConfigError lists the places that were looked at, and says how to get the set.
inline constexpr char kSynthetic[] = "synthetic";
ImageSet find_image_set(std::string_view name, const std::filesystem::path& data_path, Split split);

}  // namespace lockstep
