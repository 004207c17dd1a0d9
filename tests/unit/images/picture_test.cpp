#include "images/picture.h"

#include <gmock/gmock.h>

#include "support/config_error.h"
#include "unit/images/picture_files.h"
#include "unit/images/set_files.h"

namespace lockstep::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr int kWidth = 6, kHeight = 4;

struct Decoded {
  ImageView view;
  std::vector<uint8_t> pixels;

  int at(int y, int x, int channel) const {
    return pixels[static_cast<size_t>((y * view.width + x) * 3 + channel)];
  }
};

std::span<const uint8_t> span_of(const std::string& bytes) {
  return {reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()};
}

Decoded decode(const std::string& file) {
  Decoded decoded;
  decoded.view = images::decode_picture(span_of(file), "a/picture", decoded.pixels);
  EXPECT_EQ(decoded.view.channels, 3);
  EXPECT_EQ(decoded.view.layout, ImageView::Layout::kInterleaved);
  return decoded;
}

std::string error(const std::string& file) {
  return error_of([&] { decode(file); });
}

std::string as_text(const std::vector<uint8_t>& pixels) { return {pixels.begin(), pixels.end()}; }

std::string flat(const std::string& pixel, int count = kWidth * kHeight) {
  std::string pixels;
  for (int i = 0; i < count; ++i) pixels += pixel;
  return pixels;
}

TEST(Picture, PngIsExact) {
  const std::string pixels = pattern(kWidth * kHeight * 3);
  for (const int interlace : {PNG_INTERLACE_NONE, PNG_INTERLACE_ADAM7}) {
    const Decoded decoded = decode(png(pixels, kWidth, kHeight, {.interlace = interlace}));
    EXPECT_EQ(decoded.view.width, kWidth);
    EXPECT_EQ(decoded.view.height, kHeight);
    EXPECT_EQ(as_text(decoded.pixels), pixels);
  }
  // A file's gamma is not applied.
  EXPECT_EQ(as_text(decode(png(pixels, kWidth, kHeight, {.has_gamma = true})).pixels), pixels);
}

TEST(Picture, PngOfOtherKindsBecomesRgb) {
  const Decoded grey =
      decode(png(pattern(kWidth * kHeight), kWidth, kHeight, {.color = PNG_COLOR_TYPE_GRAY}));
  const Decoded alpha = decode(
      png(flat(std::string("\x10\x20\x30\x00", 4)), kWidth, kHeight, {.color = PNG_COLOR_TYPE_RGB_ALPHA}));
  const Decoded deep =
      decode(png(flat(std::string("\x11\xff\x22\x00\x33\x80", 6)), kWidth, kHeight, {.depth = 16}));
  const Decoded palette =
      decode(png(flat("\x1b\x10", kHeight), kWidth, kHeight, {.color = PNG_COLOR_TYPE_PALETTE, .depth = 2}));
  for (int c = 0; c < 3; ++c) {
    EXPECT_EQ(grey.at(1, 2, c), static_cast<uint8_t>(pattern(kWidth * kHeight)[kWidth + 2]));
    EXPECT_EQ(alpha.at(3, 5, c), 0x10 * (c + 1));
    EXPECT_EQ(deep.at(0, 0, c), 0x11 * (c + 1));
    EXPECT_EQ(palette.at(2, 3, c), 100 + 10 * c);
  }
}

TEST(Picture, JpegIsNear) {
  const Decoded decoded = decode(jpeg(flat("\xc8\x32\x64"), kWidth, kHeight));
  EXPECT_EQ(decoded.view.width, kWidth);
  EXPECT_EQ(decoded.view.height, kHeight);
  EXPECT_NEAR(decoded.at(3, 5, 0), 0xc8, 3);
  EXPECT_NEAR(decoded.at(3, 5, 1), 0x32, 3);
  EXPECT_NEAR(decoded.at(3, 5, 2), 0x64, 3);
  const Decoded progressive =
      decode(jpeg(flat("\xc8\x32\x64"), kWidth, kHeight, TJPF_RGB, TJFLAG_PROGRESSIVE));
  EXPECT_EQ(progressive.pixels, decoded.pixels);
}

TEST(Picture, JpegOfOtherKindsBecomesRgb) {
  const Decoded grey = decode(jpeg(flat("\x50"), kWidth, kHeight, TJPF_GRAY));
  // Ink as Adobe keeps it: 255 is none.
  const Decoded cmyk = decode(jpeg(flat("\xff\x80\x40\xff"), kWidth, kHeight, TJPF_CMYK));
  for (int c = 0; c < 3; ++c) EXPECT_NEAR(grey.at(0, 1, c), 0x50, 2);
  EXPECT_NEAR(cmyk.at(1, 1, 0), 0xff, 3);
  EXPECT_NEAR(cmyk.at(1, 1, 1), 0x80, 3);
  EXPECT_NEAR(cmyk.at(1, 1, 2), 0x40, 3);
}

TEST(Picture, CutFilesAreErrors) {
  const std::string whole_jpeg = jpeg(pattern(64 * 64 * 3), 64, 64),
                    whole_png = png(pattern(64 * 64 * 3), 64, 64);
  for (const size_t part : {1, 2, 5, 10, 50, 90, 99}) {
    EXPECT_THAT(error(whole_jpeg.substr(0, whole_jpeg.size() * part / 100)), HasSubstr("a/picture")) << part;
    EXPECT_THAT(error(whole_png.substr(0, whole_png.size() * part / 100)), HasSubstr("a/picture")) << part;
  }
  EXPECT_THAT(error(whole_png.substr(0, whole_png.size() - 6)),
              AllOf(HasSubstr("at byte"), HasSubstr("the file is cut")));
  EXPECT_THAT(error(""), HasSubstr("neither a JPEG nor a PNG"));
  EXPECT_THAT(error("GIF89a"), HasSubstr("neither a JPEG nor a PNG"));
}

TEST(Picture, GiantSizesAllocateNothing) {
  std::string giant = jpeg(flat("\xc8\x32\x64"), kWidth, kHeight);
  size_t frame = giant.find("\xff\xc0");
  ASSERT_NE(frame, std::string::npos);
  giant.replace(frame + 5, 4, "\xfd\xe8\xfd\xe8");
  EXPECT_THAT(error(giant), AllOf(HasSubstr("65000 by 65000"), HasSubstr("is the most")));

  giant.replace(frame + 5, 4, "\x10\x01\x10\x01");
  EXPECT_THAT(error(giant), HasSubstr("4097 by 4097 pixels are more than it can hold"));

  // A PNG's size is in its header, which has a checksum.
  std::string header = "IHDR" + std::string("\0\0\x1f\xff\0\0\x1f\xff\x08\x02\0\0\0", 13);
  const auto sum = crc32(0, reinterpret_cast<const Bytef*>(header.data()), static_cast<uInt>(header.size()));
  for (int shift = 24; shift >= 0; shift -= 8) header += static_cast<char>(sum >> shift);
  std::string large = png(flat("abc"), kWidth, kHeight);
  large.replace(12, header.size(), header);
  EXPECT_THAT(error(large), AllOf(HasSubstr("at byte 16"), HasSubstr("8191 by 8191")));
}

}  // namespace
}  // namespace lockstep::test
