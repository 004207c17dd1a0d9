#pragma once

// Image sets as files: MNIST's, CIFAR's, folders of pictures, HDF5, tensors; and what happens to an image on
// its way to a batch. No LibTorch.
//
//   auto images = lockstep::find_image_set("cifar100", "data", lockstep::Split::kTest);

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

// The pixels of one image, a byte a channel. Refers to memory of its source, or to the
// scratch buffer of the caller.
struct ImageView {
  enum class Layout {
    kPlanar,      // [channels, height, width]: MNIST, CIFAR
    kInterleaved  // [height, width, channels]: decoded files, HDF5
  };

  const uint8_t* pixels = nullptr;
  int channels = 0;
  int height = 0;
  int width = 0;
  Layout layout = Layout::kPlanar;
};

// Labelled images by index: a file that is mapped into memory, a folder of pictures that
// are decoded when asked for. Any number of threads may read at once.
class ImageSource {
 public:
  virtual ~ImageSource() = default;

  virtual int64_t size() const = 0;
  // 0 <= label(index) < num_classes().
  virtual int64_t label(int64_t index) const = 0;
  virtual int64_t num_classes() const = 0;
  // Empty where the source has no names for its classes.
  virtual std::span<const std::string> class_names() const { return {}; }

  // The pixels of an image, 0 <= index < size(). scratch is the caller's, for what must be
  // decoded; the view is valid until scratch is used again and while the source lives.
  // ConfigError: the image cannot be decoded; names the file and the place in it.
  virtual ImageView image(int64_t index, std::vector<uint8_t>& scratch) const = 0;
};

// What becomes of a picture on its way into a batch. The steps happen in the order of the
// fields; each is left out where its field has the default.
//
//   ImageTransform train{.random_crop = 32, .padding = 4, .flip_probability = 0.5,
//                        .mean = {0.5071, 0.4865, 0.4409}, .stddev = {0.2673, 0.2564, 0.2762}};
//   ImageTransform test{.resize = 256, .center_crop = 224};
//
// Equal to torchvision 0.26 on pictures of PIL, bit for bit: Resize(resize), CenterCrop,
// RandomCrop(random_crop, padding), RandomHorizontalFlip, ToTensor, Normalize(mean, stddev),
// where the random numbers are the same. They are drawn from the sample's seed alone, see
// draw_augmentation().
struct ImageTransform {
  enum class Layout { kChannelsFirst, kChannelsLast };  // in memory; the shape is [C, H, W]
  enum class Type { kFloat32, kFloat16, kBFloat16, kUInt8 };

  // The shorter side in pixels; the longer one keeps the ratio. Bilinear with antialias, as
  // PIL does it: the horizontal pass, then the vertical one, each rounded to bytes. (New
  // versions of PIL take them the other way round for tall pictures; bytes then differ by
  // one here and there.)
  int resize = 0;
  // A square from the middle. What lies outside of a smaller picture is black.
  int center_crop = 0;
  // A square from a random place of the picture with `padding` black pixels on each side.
  int random_crop = 0;
  int padding = 0;
  // Left and right exchanged.
  double flip_probability = 0;
  // A byte b becomes (b / 255 - mean) / stddev, in float32 and in this order: b / 255 where
  // both are empty. One number for all channels, or one each.
  std::vector<float> mean = {};
  std::vector<float> stddev = {};

  Layout layout = Layout::kChannelsFirst;
  // Rounded from float32 to the nearest, ties to even. kUInt8 keeps the bytes.
  Type type = Type::kFloat32;

  // ConfigError names the field that is out of range, or at odds with another.
  void validate() const;
  // Whether a picture looks different in every epoch.
  bool is_random() const { return random_crop > 0 || flip_probability > 0; }
};

size_t bytes_of(ImageTransform::Type type);

// Height and width in pixels.
struct ImageSize {
  int height = 0;
  int width = 0;

  bool operator==(const ImageSize&) const = default;
};

// The size of what the transform makes of a picture of this size. ConfigError: the crop is
// larger than the padded picture.
ImageSize transformed_size(const ImageTransform& transform, ImageSize size);

// The random numbers of one sample: the crop's upper left corner in the padded picture,
// and whether the crop is flipped.
struct Augmentation {
  int top = 0;
  int left = 0;
  bool flip = false;
};

// Draws them for a picture of this size. Number k of a seed is SplitMix64's output k; top
// is number 0, left number 1 (each scaled to its range by the upper half of the 128-bit
// product), and flip number 2 (its upper 53 bits as a fraction, below the probability). A
// step that is left out moves no other number. ConfigError as transformed_size().
Augmentation draw_augmentation(const ImageTransform& transform, ImageSize size, uint64_t seed);

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
