#pragma once

#include <lockstep/image_files.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "images/file_bytes.h"

// Sets whose images and labels lie uncompressed in memory or in a mapped file.
namespace lockstep::images {

// Limits for one image, against headers with wrong sizes: each side, and the number of pixels.
inline constexpr int64_t kMaxSide = 65'536;
inline constexpr int64_t kMaxPixels = int64_t{1} << 26;
// The most bytes that one byte of deflate can unpack to.
inline constexpr uint64_t kDeflateRatio = 1032;
inline constexpr int64_t kMaxClasses = 1'000'000;

struct ImageShape {
  int channels = 0;
  int height = 0;
  int width = 0;
  ImageView::Layout layout = ImageView::Layout::kPlanar;

  int64_t bytes() const { return int64_t{channels} * height * width; }
};

// Images of one shape at equal distances in memory.
struct ImageBlock {
  SharedBytes memory;
  int64_t first = 0;   // offset of the first image
  int64_t stride = 0;  // bytes from one image to the next
  int64_t count = 0;
};

struct ImageLabels {
  std::vector<int32_t> values;
  int64_t num_classes = 0;
  std::vector<std::string> names;  // empty, or one for each class
};

// The set of all blocks, one after the other.
class PackedImages final : public ImageSource {
 public:
  PackedImages(ImageShape shape, std::vector<ImageBlock> blocks, ImageLabels labels);

  int64_t size() const override { return static_cast<int64_t>(labels_.values.size()); }
  int64_t label(int64_t index) const override;
  int64_t num_classes() const override { return labels_.num_classes; }
  std::span<const std::string> class_names() const override { return labels_.names; }
  ImageView image(int64_t index, std::vector<uint8_t>& scratch) const override;

 private:
  ImageShape shape_;
  std::vector<ImageBlock> blocks_;
  std::vector<int64_t> ends_;  // of each block: the index after its last image
  ImageLabels labels_;
};

// Checks that labels are classes, and finds the number of classes: the given one, or, if that is
// 0, the largest label plus one.
class LabelCheck {
 public:
  explicit LabelCheck(int64_t num_classes);

  // False: the label is not a class; error_text() describes it.
  bool take(int64_t label);
  std::string error_text(int64_t label) const;
  int64_t num_classes() const;

 private:
  int64_t limit_;
  bool is_given_;
  int64_t largest_ = -1;
};

// --- tensors of HDF5, safetensors and .npy files ---

// The file and the name of a tensor, for messages.
struct TensorPlace {
  const std::filesystem::path& path;
  std::string_view name;
};

// ConfigError: "'file': tensor 'name': reason".
[[noreturn]] void fail_tensor(const TensorPlace& place, std::string_view reason);

// A tensor of bytes with images: [n, height, width], [n, 1 or 3, height, width] or
// [n, height, width, 1 or 3]. ConfigError: another shape, or no images. REQUIRES: the file is large
// enough for the tensor.
struct ImageTensor {
  int64_t count = 0;
  ImageShape shape;
};
ImageTensor image_tensor(std::span<const int64_t> dimensions, const TensorPlace& place);

// Integers, least significant byte first.
struct IntegerType {
  int bytes = 0;  // 1, 2, 4 or 8
  bool is_signed = false;
};

// The labels of a tensor of integers. ConfigError: a label is out of range; the text names its byte
// in the file if file_offset, the offset of the first label, is given, otherwise its index.
ImageLabels integer_labels(std::span<const uint8_t> bytes, IntegerType type, ImageClasses classes,
                           std::optional<uint64_t> file_offset, const TensorPlace& place);

}  // namespace lockstep::images
