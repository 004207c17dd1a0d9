#include <fmt/format.h>
#include <turbojpeg.h>

#include <algorithm>
#include <memory>
#include <string_view>

#include "images/file_error.h"
#include "images/packed_images.h"
#include "images/picture.h"

namespace lockstep::images {
namespace {

using Path = std::filesystem::path;

struct JpegHeader {
  int width = 0;
  int height = 0;
  int subsampling = 0;
  int colorspace = 0;

  bool is_cmyk() const { return colorspace == TJCS_CMYK || colorspace == TJCS_YCCK; }
};

// A block of 64 pixels takes a bit at least: more than twice what the densest file has.
constexpr size_t kMaxPixelsPerByte = 1024;

// libjpeg goes on after what it calls a warning: after bytes too many between two parts,
// which cameras leave there, but also with grey where the file is cut.
bool is_harmless(tjhandle jpeg) {
  return tjGetErrorCode(jpeg) == TJERR_WARNING &&
         std::string_view(tjGetErrorStr2(jpeg)).find("extraneous bytes") != std::string_view::npos;
}

void decode(tjhandle jpeg, std::span<const uint8_t> file, const Path& path, const JpegHeader& header,
            int format, std::vector<uint8_t>& pixels) {
  const auto pixel_bytes = static_cast<size_t>(tjPixelSize[format]);
  pixels.resize(static_cast<size_t>(header.width) * static_cast<size_t>(header.height) * pixel_bytes);
  // A limit on the scans: a small file of very many of them would take minutes.
  if (tjDecompress2(jpeg, file.data(), file.size(), pixels.data(), header.width, 0, header.height, format,
                    TJFLAG_LIMITSCANS) != 0 &&
      !is_harmless(jpeg)) {
    fail_picture(path, file.size(), tjGetErrorStr2(jpeg));
  }
}

// As Adobe stores it, inverted: 255 is no ink.
void cmyk_to_rgb(const std::vector<uint8_t>& cmyk, std::vector<uint8_t>& rgb) {
  rgb.resize(cmyk.size() / 4 * 3);
  uint8_t* to = rgb.data();
  for (size_t i = 0; i < cmyk.size(); i += 4) {
    for (size_t c = 0; c < 3; ++c) *to++ = static_cast<uint8_t>((cmyk[i + c] * cmyk[i + 3] + 127) / 255);
  }
}

}  // namespace

ImageView decode_jpeg(std::span<const uint8_t> file, const Path& path, std::vector<uint8_t>& pixels) {
  const std::unique_ptr<void, int (*)(tjhandle)> jpeg(tjInitDecompress(), tjDestroy);
  if (jpeg == nullptr) fail_picture(path, file.size(), "no memory");
  JpegHeader header;
  if (tjDecompressHeader3(jpeg.get(), file.data(), file.size(), &header.width, &header.height,
                          &header.subsampling, &header.colorspace) != 0 &&
      !is_harmless(jpeg.get())) {
    fail_picture(path, file.size(), tjGetErrorStr2(jpeg.get()));
  }
  check_picture_size(header.width, header.height, path, file.size());
  if (static_cast<size_t>(header.width) * static_cast<size_t>(header.height) / kMaxPixelsPerByte >
      file.size()) {
    fail_picture(path, file.size(),
                 fmt::format("{} by {} pixels are more than it can hold", header.width, header.height));
  }
  if (header.is_cmyk()) {
    std::vector<uint8_t> cmyk;
    decode(jpeg.get(), file, path, header, TJPF_CMYK, cmyk);
    cmyk_to_rgb(cmyk, pixels);
  } else {
    decode(jpeg.get(), file, path, header, TJPF_RGB, pixels);
  }
  return {.pixels = pixels.data(),
          .channels = 3,
          .height = header.height,
          .width = header.width,
          .layout = ImageView::Layout::kInterleaved};
}

}  // namespace lockstep::images
