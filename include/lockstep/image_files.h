#pragma once

// Opens labelled image sets: MNIST's and CIFAR's files, folders of pictures, HDF5, safetensors, npy,
// synthetic images. Also describes the transforms between a picture and a batch (resize, crop, flip,
// normalisation). Does not need LibTorch; images.h makes tensors of the images.
//
// Example:
//
//   const lockstep::ImageSet images =
//       lockstep::find_image_set("cifar10", "synthetic", lockstep::Split::kTest);
//   std::vector<uint8_t> scratch;
//   const lockstep::ImageView first = images->image(0, scratch);
//   std::printf("%d x %d pixels, class %d\n", first.height, first.width, int(images->label(0)));
//
// More: docs/data.md

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

// The pixels of one image, one byte for each channel. It refers to memory of the source or to the
// caller's scratch buffer, and owns nothing.
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

// Labelled images by index, for example a file that is mapped into memory, or a folder of pictures that
// are decoded on request. Any number of threads may read at once.
class ImageSource {
 public:
  virtual ~ImageSource() = default;

  virtual int64_t size() const = 0;
  // 0 <= label(index) < num_classes().
  virtual int64_t label(int64_t index) const = 0;
  virtual int64_t num_classes() const = 0;
  // Empty if the source has no names for its classes.
  virtual std::span<const std::string> class_names() const { return {}; }

  // The pixels of an image, 0 <= index < size(). The caller owns `scratch`, which holds the pixels if
  // the image must be decoded. The view is valid until `scratch` is used again, and while the source
  // exists. ConfigError: the image cannot be decoded; it names the file and the place in it.
  virtual ImageView image(int64_t index, std::vector<uint8_t>& scratch) const = 0;
};

// How far the colours of a picture change at random, as torchvision's ColorJitter(brightness, contrast,
// saturation, hue). 0: not at all.
struct ColorJitter {
  // A factor from max(0, 1 - x) to 1 + x: 0 gives a black picture, a grey one of its mean brightness, a
  // picture without colours.
  double brightness = 0;
  double contrast = 0;
  double saturation = 0;
  // A shift from -x to x, where 1 is the whole circle of colours; at most 0.5.
  double hue = 0;

  bool is_set() const { return brightness > 0 || contrast > 0 || saturation > 0 || hue > 0; }
};

// The way from a picture to a sample. The steps run in the order of the fields; a step whose field has
// the default is left out.
//
//   ImageTransform train{.random_crop = 32, .padding = 4, .flip_probability = 0.5,
//                        .mean = {0.5071, 0.4865, 0.4409}, .stddev = {0.2673, 0.2564, 0.2762}};
//   ImageTransform test{.resize = 256, .center_crop = 224};
//
// Bit for bit equal to torchvision 0.26 on PIL's pictures, for the same random numbers: Resize(resize),
// CenterCrop, RandomCrop(random_crop, padding), RandomResizedCrop(random_resized_crop, crop_area,
// crop_ratio), RandomHorizontalFlip, ColorJitter, ToTensor, Normalize(mean, stddev). The random numbers
// depend only on the sample's seed, see draw_augmentation().
struct ImageTransform {
  enum class Layout { kChannelsFirst, kChannelsLast };  // in memory; the shape is [C, H, W]
  enum class Type { kFloat32, kFloat16, kBFloat16, kUInt8 };

  // The shorter side in pixels; the longer side keeps the ratio. Bilinear with antialiasing, as PIL
  // does it: the horizontal pass, then the vertical pass, each rounded to bytes. (New versions of PIL
  // use the other order for tall pictures; some bytes then differ by one.)
  int resize = 0;
  // The side of a square from the centre, in pixels. Pixels outside of a smaller picture are black.
  int center_crop = 0;
  // The side of a square at a random place of the picture, which has `padding` black pixels added on
  // each side.
  int random_crop = 0;
  int padding = 0;
  // The side of the square to which a random part of the picture is resized. Excludes the fields above.
  // The part has a share of the picture's area and a ratio of width to height, both drawn from these
  // ranges. ImageDataset only.
  int random_resized_crop = 0;
  std::array<double, 2> crop_area = {0.08, 1.0};
  std::array<double, 2> crop_ratio = {3.0 / 4.0, 4.0 / 3.0};
  // Probability that left and right are exchanged.
  double flip_probability = 0;
  // ImageDataset only.
  ColorJitter color_jitter = {};
  // A byte b becomes (b / 255 - mean) / stddev, computed in float32 in this order; b / 255 if both are
  // empty. One number for all channels, or one for each channel.
  std::vector<float> mean = {};
  std::vector<float> stddev = {};

  Layout layout = Layout::kChannelsFirst;
  // Rounded from float32 to nearest, ties to even. kUInt8 keeps the bytes.
  Type type = Type::kFloat32;

  // ConfigError names the field that is out of range, or that contradicts another one.
  void validate() const;
  // Whether a picture looks different in every epoch.
  bool is_random() const {
    return random_crop > 0 || random_resized_crop > 0 || flip_probability > 0 || color_jitter.is_set();
  }
};

// Bytes of one element.
size_t bytes_of(ImageTransform::Type type);

// Height and width in pixels.
struct ImageSize {
  int height = 0;
  int width = 0;

  bool operator==(const ImageSize&) const = default;
};

// The size of the result for a picture of this size. ConfigError: the crop is larger than the padded
// picture.
ImageSize transformed_size(const ImageTransform& transform, ImageSize size);

// The choices for color_jitter. The factors of steps that it leaves out are not used.
struct ColorFactors {
  std::array<int, 4> order = {0, 1, 2, 3};  // 0: brightness, 1: contrast, 2: saturation, 3: hue
  double brightness = 1;
  double contrast = 1;
  double saturation = 1;
  double hue = 0;

  bool operator==(const ColorFactors&) const = default;
};

// The random choices for one sample: the upper left corner of the crop in the padded picture, and
// whether the crop is flipped; the size of the part for random_resized_crop; the change of colours.
struct Augmentation {
  int top = 0;
  int left = 0;
  bool flip = false;
  ImageSize part = {};
  ColorFactors colors = {};
};

// Draws the choices for a picture of this size. Number k of a seed is output k of SplitMix64. Number 0
// gives `top`, number 1 gives `left` (each scaled to its range by the upper half of the 128-bit
// product), number 2 gives `flip` (its upper 53 bits as a fraction, compared with the probability). For
// random_resized_crop, numbers 3 and 4 are the area and the ratio of the first try, 5 and 6 those of the
// second (their upper 24 bits as a fraction), computed as torchvision does from uniform numbers. For
// color_jitter, number 32 gives the order (scaled to the 24 permutations, in lexicographic order), 33 to 36
// the brightness, contrast, saturation and hue (as 3). A step that is left out does not change the numbers of
// the others. ConfigError: as transformed_size().
Augmentation draw_augmentation(const ImageTransform& transform, ImageSize size, uint64_t seed);

// The functions below open labelled image sets. Any number of threads may read the returned source.
// ConfigError names the file and the place in it: the file is truncated, mixed up with another one,
// larger or smaller than its header says, or has labels out of range. Never allocates more memory than
// the file can fill before it is read.
//
// Plain files are mapped into memory: the processes of a node share one copy. Compressed data are
// decompressed into the memory of each process.

using ImageSet = std::shared_ptr<const ImageSource>;

enum class Split { kTrain, kTest };

// The classes of a file that does not name them: their names, or only their number. 0 and no names: one
// more than the largest label.
struct ImageClasses {
  std::vector<std::string> names;
  int64_t count = 0;
};

// IDX, the format of MNIST and Fashion-MNIST, plain or gzip.
ImageSet open_idx(const std::filesystem::path& images_path, const std::filesystem::path& labels_path,
                  ImageClasses classes = {});

// CIFAR's binary version or its Python version, which torchvision stores: the folder with the .bin
// files, or with the pickles (data_batch_1, test_batch; train, test), or the tar archive that contains
// it (plain or compressed). No code of a pickle is executed.
ImageSet open_cifar10(const std::filesystem::path& path, Split split);
enum class Cifar100Labels { kFine, kCoarse };
ImageSet open_cifar100(const std::filesystem::path& path, Split split,
                       Cifar100Labels labels = Cifar100Labels::kFine);

// HDF5 with the datasets `images` (unsigned bytes: [n, height, width], [n, 3, height, width] or [n,
// height, width, 3]; 1 channel too) and `labels` (integers: [n]). Contiguous data, and chunks that are
// whole images, are mapped; other chunks are decompressed into memory.
ImageSet open_hdf5(const std::filesystem::path& path, ImageClasses classes = {});

// Tensors `images` and `labels` with the shapes that open_hdf5() takes, in one safetensors or .npz file
// or in two .npy files. Mapped into memory, except those of .npz.
ImageSet open_safetensors(const std::filesystem::path& path, ImageClasses classes = {});
ImageSet open_npy(const std::filesystem::path& images_path, const std::filesystem::path& labels_path,
                  ImageClasses classes = {});

// The same from any tensors of .npy, .npz and safetensors files. A source is FILE, or FILE:NAME for one
// of several tensors; without a name, images are also found as `inputs` and `x`, labels as `targets`
// and `y`.
ImageSet open_image_tensors(const std::string& images, const std::string& labels, ImageClasses classes = {});

// A folder for each class with .jpg, .jpeg and .png pictures, in root itself, or in root/train and
// root/val (or root/test). Classes are in the order of their names; both splits have the classes of the
// training split. A split may also have the form of Tiny ImageNet: pictures in its folder `images`, and
// val_annotations.txt beside it with the class of each picture. Pictures are decoded on request, to
// red, green and blue; their sizes may differ.
ImageSet open_image_folder(const std::filesystem::path& root, Split split);

// Images that are computed on request, the same for a seed on every machine. Each class has its own
// pattern with noise, so a model can learn it.
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

// Any of these formats; the names of the files decide which.
ImageSet open_images(const std::filesystem::path& path, Split split);

// A set by its name: mnist, fashion-mnist, cifar10, cifar100 or tiny-imagenet.
//
// With a data path the set must be there: at the path itself, in a usual folder below it, or any set
// that open_images() takes. The path "synthetic" gives synthetic images with the shape, classes and
// sizes of the set. An empty path means the variable LOCKSTEP_DATA if it is set. Without either, the
// set is searched in ./data, ~/.cache/lockstep and ~/.cache, and fashion-mnist last in Debian's package
// dataset-fashion-mnist. ConfigError lists the places that were searched, and how to get the set.
inline constexpr char kSynthetic[] = "synthetic";
ImageSet find_image_set(std::string_view name, const std::filesystem::path& data_path, Split split);

}  // namespace lockstep
