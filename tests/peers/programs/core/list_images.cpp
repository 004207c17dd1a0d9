// Prints what an image set holds, a line for each image:
//   list_images PATH train|test   ->   label channels height width checksum
// The checksum is zlib's crc32 of the pixels, with the channels last.
#include <lockstep/error.h>
#include <lockstep/image_files.h>
#include <zlib.h>

#include <cstdio>
#include <string>
#include <vector>

namespace {

std::vector<uint8_t> channels_last(const lockstep::ImageView& view) {
  const auto area = static_cast<size_t>(view.height) * static_cast<size_t>(view.width);
  const auto channels = static_cast<size_t>(view.channels);
  std::vector<uint8_t> pixels(view.pixels, view.pixels + area * channels);
  if (view.layout == lockstep::ImageView::Layout::kPlanar) {
    for (size_t i = 0; i < area; ++i) {
      for (size_t c = 0; c < channels; ++c) pixels[i * channels + c] = view.pixels[c * area + i];
    }
  }
  return pixels;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  try {
    const auto split = std::string(argv[2]) == "train" ? lockstep::Split::kTrain : lockstep::Split::kTest;
    const lockstep::ImageSet set = lockstep::open_images(argv[1], split);
    std::vector<uint8_t> scratch;
    for (int64_t i = 0; i < set->size(); ++i) {
      const lockstep::ImageView view = set->image(i, scratch);
      const std::vector<uint8_t> pixels = channels_last(view);
      std::printf("%ld %d %d %d %08lx\n", static_cast<long>(set->label(i)), view.channels, view.height,
                  view.width, crc32(0, pixels.data(), static_cast<uInt>(pixels.size())));
    }
  } catch (const lockstep::Error& error) {
    std::printf("%s\n", error.what());
    return 1;
  }
  return 0;
}
