#pragma once

#include <cstdint>
#include <span>
#include <string>
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

}  // namespace lockstep
