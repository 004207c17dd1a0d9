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

// IDX, as MNIST and Fashion-MNIST come, plain or gzip. Class names, or their number where
// there are none; 0: one more than the largest label.
struct IdxClasses {
  std::vector<std::string> names;
  int64_t count = 0;
};
ImageSet open_idx(const std::filesystem::path& images_path, const std::filesystem::path& labels_path,
                  IdxClasses classes = {});

// CIFAR's binary version: the folder with the .bin files, or the archive that holds it
// (tar, plain or compressed).
ImageSet open_cifar10(const std::filesystem::path& path, Split split);
enum class Cifar100Labels { kFine, kCoarse };
ImageSet open_cifar100(const std::filesystem::path& path, Split split,
                       Cifar100Labels labels = Cifar100Labels::kFine);

// Any of the formats, told apart by the names of the files.
ImageSet open_images(const std::filesystem::path& path, Split split);

// A set by its name: mnist, fashion-mnist, cifar10, cifar100.
//
// With a data path the set must be there: the path itself or a usual folder below it, or
// any set that open_images takes.
// Without one it is looked for under $LOCKSTEP_DATA, ./data, ~/.cache/lockstep and
// ~/.cache; fashion-mnist last of all in Debian's package dataset-fashion-mnist.
// ConfigError lists the places that were looked at, and says how to get the set.
ImageSet find_image_set(std::string_view name, const std::filesystem::path& data_path, Split split);

}  // namespace lockstep
