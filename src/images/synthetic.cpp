// Computed images: a coarse pattern for each class, plus noise that depends only on seed, split and
// index.
#include <fmt/format.h>
#include <lockstep/image_files.h>

#include <array>

#include "base/check.h"
#include "base/split_mix.h"
#include "images/file_bytes.h"
#include "images/packed_images.h"

namespace lockstep {
namespace images {
namespace {

// Large cells: a pattern stays recognisable after a crop, a flip or a resize.
constexpr int kCells = 7;
// The sum of pattern and noise fits into a byte.
constexpr uint64_t kNoise = 96, kRange = 256 - kNoise;

class SyntheticImages final : public ImageSource {
 public:
  SyntheticImages(const SyntheticSet& set, Split split)
      : shape_{.channels = set.channels, .height = set.height, .width = set.width},
        num_classes_(set.num_classes),
        size_(split == Split::kTrain ? set.train_size : set.test_size),
        pattern_key_(base::split_mix(set.seed)),
        noise_key_(base::split_mix(pattern_key_ + (split == Split::kTrain ? 1 : 2))) {}

  int64_t size() const override { return size_; }
  int64_t num_classes() const override { return num_classes_; }

  int64_t label(int64_t index) const override {
    base::check(0 <= index && index < size_, "the index of an image is in range");
    return index % num_classes_;
  }

  ImageView image(int64_t index, std::vector<uint8_t>& scratch) const override {
    const auto pattern = base::split_mix(pattern_key_ ^ static_cast<uint64_t>(label(index)));
    scratch.resize(static_cast<size_t>(shape_.bytes()));
    uint8_t* row = scratch.data();
    uint64_t state = base::split_mix(noise_key_ ^ static_cast<uint64_t>(index));
    for (int channel = 0; channel < shape_.channels; ++channel) {
      for (int y = 0; y < shape_.height; ++y, row += shape_.width) {
        fill_row(row, cells(pattern, channel, y * kCells / shape_.height), state);
      }
    }
    return {.pixels = scratch.data(),
            .channels = shape_.channels,
            .height = shape_.height,
            .width = shape_.width,
            .layout = ImageView::Layout::kPlanar};
  }

 private:
  using Cells = std::array<uint8_t, kCells>;

  // One row of a class's pattern.
  static Cells cells(uint64_t pattern, int channel, int row) {
    const uint64_t bits = base::split_mix(pattern + static_cast<uint64_t>(channel * kCells + row));
    Cells result{};
    for (size_t i = 0; i < kCells; ++i) {
      result[i] = static_cast<uint8_t>((bits >> (8 * i) & 0xff) * kRange / 256);
    }
    return result;
  }

  void fill_row(uint8_t* row, const Cells& cells, uint64_t& state) const {
    uint64_t bits = 0;
    for (int x = 0; x < shape_.width; ++x, bits >>= 8) {
      if (x % 8 == 0) bits = state = base::split_mix(state);
      const uint64_t noise = (bits & 0xff) * kNoise / 256;
      row[x] = static_cast<uint8_t>(cells[static_cast<size_t>(x * kCells / shape_.width)] + noise);
    }
  }

  ImageShape shape_;
  int64_t num_classes_;
  int64_t size_;
  uint64_t pattern_key_;
  uint64_t noise_key_;
};

}  // namespace
}  // namespace images

ImageSet synthetic_images(const SyntheticSet& set, Split split) {
  const auto is_side = [](int size) { return 0 < size && size <= images::kMaxSide; };
  if (!is_side(set.height) || !is_side(set.width) || int64_t{set.height} * set.width > images::kMaxPixels ||
      (set.channels != 1 && set.channels != 3) || set.num_classes < 1 ||
      set.num_classes > images::kMaxClasses || set.train_size < 1 || set.test_size < 1) {
    throw ConfigError(
        images::kComponent,
        fmt::format("no synthetic images of this kind: {} channels (1 or 3), height {}, width {}, "
                    "{} classes, {} for training, {} for test",
                    set.channels, set.height, set.width, set.num_classes, set.train_size, set.test_size));
  }
  return std::make_shared<images::SyntheticImages>(set, split);
}

}  // namespace lockstep
