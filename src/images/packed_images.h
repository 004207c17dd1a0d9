#pragma once

#include <lockstep/image_source.h>

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "images/shared_bytes.h"

namespace lockstep::images {

struct ImageShape {
  int channels = 0;
  int height = 0;
  int width = 0;
  ImageView::Layout layout = ImageView::Layout::kPlanar;

  int64_t bytes() const { return int64_t{channels} * height * width; }
};

// What one image may be at most: width and height, and their product. Guards against
// headers that lie.
inline constexpr int64_t kMaxSide = 65'536;
inline constexpr int64_t kMaxPixels = int64_t{1} << 26;
// A byte of deflate unpacks to so many at most.
inline constexpr uint64_t kDeflateRatio = 1032;
inline constexpr int64_t kMaxClasses = 1'000'000;

// Images of one shape at equal distances in memory.
struct ImageBlock {
  SharedBytes memory;
  int64_t first = 0;   // byte of the first image
  int64_t stride = 0;  // from one image to the next
  int64_t count = 0;
};

struct ImageLabels {
  std::vector<int32_t> values;
  int64_t num_classes = 0;
  std::vector<std::string> names;  // empty, or one for each class
};

// Images that lie in memory as they are, one block after the other.
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

}  // namespace lockstep::images
