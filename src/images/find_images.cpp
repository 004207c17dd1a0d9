#include "images/find_images.h"

#include <fmt/format.h>
#include <lockstep/image_files.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>
#include "base/folder.h"

#include "base/environment.h"
#include "images/file_bytes.h"

namespace lockstep {
namespace images {
namespace {

// --- the formats at a path ---

using Path = std::filesystem::path;

bool is_file(const Path& path) {
  std::error_code ignored;
  return std::filesystem::is_regular_file(path, ignored);
}

bool is_archive(const Path& path, std::string_view word) {
  const std::string name = path.filename().string();
  return is_file(path) && name.find(word) != std::string::npos &&
         (name.find(".tar") != std::string::npos || name.ends_with(".tgz") || name.ends_with(".txz"));
}

bool has_word(std::string_view name, std::initializer_list<std::string_view> words) {
  return std::any_of(words.begin(), words.end(),
                     [&](std::string_view word) { return name.find(word) != std::string_view::npos; });
}

// The split in a file's name; nullopt: there is none.
std::optional<Split> split_of(std::string_view name) {
  if (has_word(name, {"train"})) return Split::kTrain;
  if (has_word(name, {"t10k", "test", "val"})) return Split::kTest;
  return std::nullopt;
}

std::vector<Path> files_of(const Path& folder) {
  std::vector<Path> files;
  std::error_code error;
  for (const base::FolderEntry& entry : base::list_folder(folder, error)) {
    if (entry.is_file()) files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

// The path if it is a folder, otherwise the folder of the file.
Path folder_of(const Path& path) {
  if (!is_file(path)) return path;
  return path.has_parent_path() ? path.parent_path() : Path(".");
}

[[noreturn]] void fail_two(const Path& one, const Path& other) {
  throw ConfigError(kComponent, fmt::format("two sets in one folder, keep one of them there: '{}' and '{}'",
                                            one.string(), other.string()));
}

// The file of the split with this ending, preferably not compressed. ConfigError: there are several.
std::optional<Path> idx_file(const std::vector<Path>& files, std::string_view kind, Split split) {
  for (const std::string_view packed : {"", ".gz"}) {
    std::optional<Path> found;
    for (const Path& file : files) {
      const std::string name = file.filename().string();
      const bool is_kind = name.ends_with(fmt::format("-{}-ubyte{}", kind, packed)) ||
                           name.ends_with(fmt::format(".{}-ubyte{}", kind, packed));
      if (!is_kind || split_of(name) != split) continue;
      if (found) fail_two(*found, file);
      found = file;
    }
    if (found) return found;
  }
  return std::nullopt;
}

// The file of the split with one of these suffixes and the word in its name: the path itself, or a
// file in its folder. A single file without a split in its name is the training split.
std::optional<Path> one_file(const Path& path, Split split, std::initializer_list<std::string_view> suffixes,
                             std::string_view word = "") {
  const auto is_kind = [&](const Path& file) {
    const std::string suffix = file.extension().string();
    return std::find(suffixes.begin(), suffixes.end(), suffix) != suffixes.end() &&
           has_word(file.filename().string(), {word});
  };
  const auto is_part = [&](const Path& file) { return split_of(file.filename().string()) == split; };
  if (is_file(path)) {
    if (!is_kind(path)) return std::nullopt;
    const bool says_none = !split_of(path.filename().string());
    if (is_part(path) || (says_none && split == Split::kTrain)) return path;
    if (says_none) return std::nullopt;
  }
  std::vector<Path> files = files_of(folder_of(path));
  std::erase_if(files, [&](const Path& file) { return !is_kind(file); });
  const bool is_alone = files.size() == 1 && !split_of(files[0].filename().string());
  if (is_alone && split == Split::kTrain) return files[0];
  std::erase_if(files, [&](const Path& file) { return !is_part(file); });
  if (files.size() > 1) fail_two(files[0], files[1]);
  return files.empty() ? std::nullopt : std::optional(files[0]);
}

// Each of these opens the set at a path, and returns null if there is none of its format. ConfigError:
// the set is damaged.

// The pair of IDX files in a folder whose names have the split: "train", or "t10k", "test" or "val".
// The path is the folder or one of the files.
ImageSet probe_idx(const Path& path, Split split, const ImageClasses& classes) {
  if (is_file(path) && path.filename().string().find("-ubyte") == std::string::npos) return nullptr;
  const std::vector<Path> files = files_of(folder_of(path));
  const std::optional<Path> images = idx_file(files, "idx3", split);
  if (!images) return nullptr;
  const std::optional<Path> labels = idx_file(files, "idx1", split);
  if (!labels) {
    throw ConfigError(kComponent, fmt::format("no file of labels (*-labels-idx1-ubyte, .gz) beside '{}'",
                                              images->string()));
  }
  return open_idx(*images, *labels, classes);
}

// A folder or an archive.
ImageSet probe_cifar10(const Path& path, Split split) {
  const char* first = split == Split::kTrain ? "data_batch_1" : "test_batch";
  if (is_file(path / fmt::format("{}.bin", first)) || is_file(path / first) || is_archive(path, "cifar-10-"))
    return open_cifar10(path, split);
  return nullptr;
}

ImageSet probe_cifar100(const Path& path, Split split) {
  const char* first = split == Split::kTrain ? "train" : "test";
  // A file `train` or `test` is in many folders; `meta` belongs to CIFAR's Python version.
  const bool is_python = is_file(path / first) && is_file(path / "meta");
  if (is_file(path / fmt::format("{}.bin", first)) || is_python || is_archive(path, "cifar-100-"))
    return open_cifar100(path, split);
  return nullptr;
}

// An HDF5 file, or a folder with one for the split, or with a single one.
ImageSet probe_hdf5(const Path& path, Split split) {
  const auto file = one_file(path, split, {".h5", ".hdf5"});
  return file ? open_hdf5(*file) : nullptr;
}

// The same for a safetensors or .npz file, or two .npy files with "images" and "labels" in their names.
ImageSet probe_tensors(const Path& path, Split split) {
  if (const auto file = one_file(path, split, {".safetensors", ".npz"})) return open_safetensors(*file);
  const auto images = one_file(path, split, {".npy"}, "images");
  if (!images) return nullptr;
  const auto labels = one_file(folder_of(*images), split, {".npy"}, "labels");
  if (!labels) {
    throw ConfigError(kComponent,
                      fmt::format("no .npy file with 'labels' in its name beside '{}'", images->string()));
  }
  return open_npy(*images, *labels);
}

constexpr char kFormats[] =
    "MNIST's IDX files, CIFAR's binary or Python version as a folder or a tar archive, an HDF5 file (.h5, "
    ".hdf5), "
    "a safetensors or .npz file (images, labels), two .npy files (images, labels), "
    "a folder of .jpg, .jpeg and .png pictures for each class";

// Any of kFormats.
ImageSet probe_any(const Path& path, Split split) {
  if (ImageSet set = probe_idx(path, split, {})) return set;
  if (ImageSet set = probe_cifar10(path, split)) return set;
  if (ImageSet set = probe_cifar100(path, split)) return set;
  if (ImageSet set = probe_hdf5(path, split)) return set;
  if (ImageSet set = probe_tensors(path, split)) return set;
  return probe_image_folder(path, split);
}

// --- the sets with names ---

// A set with a name and the places where it is usually found.
struct KnownSet {
  std::string name;
  // Below a folder for data, in the order of the search.
  std::vector<std::string> places;
  // Where a package of the system installs it.
  std::vector<Path> installed;
  // Null: the set is not at this place.
  std::function<ImageSet(const Path& place, Split split)> probe;
  // Shape and size, for synthetic images instead of the set.
  SyntheticSet synthetic;
  // How to get the set.
  std::string advice;
};

constexpr SyntheticSet kGrey28{
    .channels = 1, .height = 28, .width = 28, .num_classes = 10, .train_size = 60'000, .test_size = 10'000};

KnownSet mnist() {
  return {.name = "mnist",
          .places = {"MNIST/raw", "mnist", "MNIST", "raw", ""},
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
          .places = {"FashionMNIST/raw", "fashion-mnist", "fashion_mnist", "FashionMNIST", "raw", ""},
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

// The binary version, and the Python version with the names that torchvision gives it.
std::vector<std::string> cifar_places(const std::string& set, const std::string& binary_folder,
                                      const std::string& python_folder, const std::string& short_name) {
  std::vector<std::string> places;
  for (const auto& [folder, archive] :
       {std::pair(binary_folder, set + "-binary"), std::pair(python_folder, set + "-python")}) {
    places.insert(places.end(), {folder, archive + ".tar.gz", archive + ".tar.xz", archive + ".tar"});
  }
  for (const std::string& parent : {set, short_name}) {
    places.insert(places.end(), {parent, parent + "/" + binary_folder, parent + "/" + python_folder});
  }
  places.emplace_back("");
  return places;
}

KnownSet cifar10() {
  return {.name = "cifar10",
          .places = cifar_places("cifar-10", "cifar-10-batches-bin", "cifar-10-batches-py", "cifar10"),
          .installed = {},
          .probe = probe_cifar10,
          .synthetic = {.num_classes = 10},
          .advice =
              "fetch cifar-10-binary.tar.gz or cifar-10-python.tar.gz from "
              "https://www.cs.toronto.edu/~kriz/cifar.html into ./data, or name it with --data; the folder "
              "that torchvision filled is found too"};
}

KnownSet cifar100() {
  return {.name = "cifar100",
          .places = cifar_places("cifar-100", "cifar-100-binary", "cifar-100-python", "cifar100"),
          .installed = {},
          .probe = probe_cifar100,
          .synthetic = {.num_classes = 100},
          .advice =
              "fetch cifar-100-binary.tar.gz or cifar-100-python.tar.gz from "
              "https://www.cs.toronto.edu/~kriz/cifar.html into ./data, or name it with --data; the folder "
              "that torchvision filled is found too"};
}

// The published set has a list of its classes. Another folder of pictures counts only if the user
// names it.
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

std::span<const KnownSet> known_sets() {
  static const std::vector<KnownSet> sets{mnist(), fashion_mnist(), cifar10(), cifar100(), tiny_imagenet()};
  return sets;
}

// The folders to search if no data path is given.
std::vector<Path> data_roots(const base::Environment& environment) {
  std::vector<Path> roots = {"data"};
  if (const auto home = environment.get("HOME"); home && !home->empty()) {
    roots.push_back(Path(*home) / ".cache/lockstep");
    roots.push_back(Path(*home) / ".cache");
  }
  return roots;
}

const KnownSet& known_set(std::string_view name) {
  const auto sets = known_sets();
  const auto found =
      std::find_if(sets.begin(), sets.end(), [&](const KnownSet& set) { return set.name == name; });
  if (found != sets.end()) return *found;
  std::vector<std::string> names;
  for (const KnownSet& set : sets) names.push_back(set.name);
  throw ConfigError(
      kComponent, fmt::format("no image set has the name '{}'; known are {}", name, fmt::join(names, ", ")));
}

std::string lines_of(const std::vector<Path>& places) {
  std::string text;
  for (const Path& place : places) text += fmt::format("\n  {}", place.string());
  return text;
}

const char* name_of(Split split) { return split == Split::kTrain ? "training" : "test"; }

}  // namespace

ImageSet find_images(std::string_view name, const Path& data_path, Split split,
                     const base::Environment& environment) {
  const KnownSet& set = known_set(name);
  // The variable has the meaning of the option --data, also for programs without that option.
  const Path path = data_path.empty() ? Path(environment.get("LOCKSTEP_DATA").value_or("")) : data_path;
  if (path == kSynthetic) return synthetic_images(set.synthetic, split);
  std::vector<Path> places;
  const bool is_named = !path.empty();
  for (const Path& root : is_named ? std::vector<Path>{path} : data_roots(environment)) {
    for (const std::string& place : set.places) places.push_back(place.empty() ? root : root / place);
  }
  if (!is_named) places.insert(places.end(), set.installed.begin(), set.installed.end());
  for (const Path& place : places) {
    if (ImageSet found = set.probe(place, split)) return found;
  }
  if (is_named) {
    if (ImageSet found = probe_any(path, split)) return found;
  }
  throw ConfigError(kComponent, fmt::format("the {} part of {} is at none of these places; {}:{}",
                                            name_of(split), name, set.advice, lines_of(places)));
}

}  // namespace images

ImageSet find_image_set(std::string_view name, const std::filesystem::path& data_path, Split split) {
  return images::find_images(name, data_path, split, base::Environment::of_process());
}

ImageSet open_images(const std::filesystem::path& path, Split split) {
  if (ImageSet found = images::probe_any(path, split)) return found;
  throw ConfigError(images::kComponent, fmt::format("'{}' is no image set whose {} part we can read: {}",
                                                    path.string(), images::name_of(split), images::kFormats));
}

}  // namespace lockstep
