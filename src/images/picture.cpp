#include "images/picture.h"

#include <fmt/format.h>
#include <png.h>
#include <turbojpeg.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <memory>
#include <string_view>

#include "images/file_bytes.h"
#include "images/packed_images.h"

namespace lockstep::images {
namespace {

using Path = std::filesystem::path;

[[noreturn]] void fail_picture(const Path& path, size_t file_bytes, std::string_view reason) {
  throw ConfigError(kComponent, fmt::format("the picture '{}' of {} bytes cannot be decoded: {}",
                                            path.string(), file_bytes, reason));
}

void check_picture_size(int64_t width, int64_t height, const Path& path, size_t file_bytes) {
  if (width < 1 || height < 1 || width > kMaxSide || height > kMaxSide || width * height > kMaxPixels) {
    fail_picture(path, file_bytes,
                 fmt::format("it is {} by {} pixels, {} is the most", width, height, kMaxPixels));
  }
}

// --- JPEG ---

struct JpegHeader {
  int width = 0;
  int height = 0;
  int subsampling = 0;
  int colorspace = 0;

  bool is_cmyk() const { return colorspace == TJCS_CMYK || colorspace == TJCS_YCCK; }
};

// A block of 64 pixels takes at least one bit. The limit is twice that of the densest file.
constexpr size_t kMaxPixelsPerByte = 1024;

// libjpeg continues after a warning. Extra bytes between two segments, which some cameras write, are
// harmless. Other warnings are errors: a truncated file gets grey pixels, for example.
bool is_harmless(tjhandle jpeg) {
  return tjGetErrorCode(jpeg) == TJERR_WARNING &&
         std::string_view(tjGetErrorStr2(jpeg)).find("extraneous bytes") != std::string_view::npos;
}

void decode(tjhandle jpeg, std::span<const uint8_t> file, const Path& path, const JpegHeader& header,
            int format, std::vector<uint8_t>& pixels) {
  const auto pixel_bytes = static_cast<size_t>(tjPixelSize[format]);
  pixels.resize(static_cast<size_t>(header.width) * static_cast<size_t>(header.height) * pixel_bytes);
  // Limit the scans: a small file with very many of them would take minutes.
  if (tjDecompress2(jpeg, file.data(), file.size(), pixels.data(), header.width, 0, header.height, format,
                    TJFLAG_LIMITSCANS) != 0 &&
      !is_harmless(jpeg)) {
    fail_picture(path, file.size(), tjGetErrorStr2(jpeg));
  }
}

// The values are inverted, as Adobe stores them: 255 is no ink.
void cmyk_to_rgb(const std::vector<uint8_t>& cmyk, std::vector<uint8_t>& rgb) {
  rgb.resize(cmyk.size() / 4 * 3);
  uint8_t* to = rgb.data();
  for (size_t i = 0; i < cmyk.size(); i += 4) {
    for (size_t c = 0; c < 3; ++c) *to++ = static_cast<uint8_t>((cmyk[i + c] * cmyk[i + 3] + 127) / 255);
  }
}

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

// --- PNG ---
//
// Not libpng's simplified interface: it applies the file's gamma, which no other reader of training
// data does. An error of libpng jumps to the last setjmp: the functions that call setjmp own nothing
// that a jump could leak.

constexpr uint8_t kPngSignature[] = {0x89, 'P', 'N', 'G', '\r', '\n', 0x1a, '\n'};

struct PngInput {
  std::span<const uint8_t> file;
  size_t at = 0;
  char error[160] = "";
};

// Owns libpng's state.
struct PngReader {
  explicit PngReader(PngInput& input);
  ~PngReader() { png_destroy_read_struct(&png, &info, nullptr); }
  PngReader(const PngReader&) = delete;
  PngReader& operator=(const PngReader&) = delete;

  // Reads the file up to the rows; false: input.error says why.
  bool read_header();
  // Reads the rows to `to`; false: input.error says why.
  bool read_rows(uint8_t* to);

  png_structp png = nullptr;
  png_infop info = nullptr;
  png_uint_32 width = 0;
  png_uint_32 height = 0;
  uint64_t stored_row_bytes = 0;  // in the file
  size_t row_bytes = 0;           // after decoding
  int passes = 1;
};

void on_error(png_structp png, png_const_charp text) {
  auto* input = static_cast<PngInput*>(png_get_error_ptr(png));
  std::strncpy(input->error, text, sizeof input->error - 1);
  png_longjmp(png, 1);
}

void on_warning(png_structp /*png*/, png_const_charp /*text*/) {}

void on_read(png_structp png, png_bytep to, png_size_t count) {
  auto* input = static_cast<PngInput*>(png_get_io_ptr(png));
  if (count > input->file.size() - input->at) {
    input->at = input->file.size();
    png_error(png, "the file is cut");
  }
  std::memcpy(to, input->file.data() + input->at, count);
  input->at += count;
}

PngReader::PngReader(PngInput& input) {
  png = png_create_read_struct(PNG_LIBPNG_VER_STRING, &input, on_error, on_warning);
  if (png != nullptr) info = png_create_info_struct(png);
  if (info != nullptr) png_set_read_fn(png, &input, on_read);
}

bool PngReader::read_header() {
  if (setjmp(png_jmpbuf(png)) != 0) return false;
  png_read_info(png, info);
  width = png_get_image_width(png, info);
  height = png_get_image_height(png, info);
  stored_row_bytes = png_get_rowbytes(png, info);
  png_set_strip_16(png);
  png_set_expand(png);
  png_set_gray_to_rgb(png);
  png_set_strip_alpha(png);
  passes = png_set_interlace_handling(png);
  png_read_update_info(png, info);
  row_bytes = png_get_rowbytes(png, info);
  return true;
}

bool PngReader::read_rows(uint8_t* to) {
  if (setjmp(png_jmpbuf(png)) != 0) return false;
  for (int pass = 0; pass < passes; ++pass) {
    for (png_uint_32 y = 0; y < height; ++y) png_read_row(png, to + y * row_bytes, nullptr);
  }
  png_read_end(png, nullptr);
  return true;
}

ImageView decode_png(std::span<const uint8_t> file, const Path& path, std::vector<uint8_t>& pixels) {
  PngInput input{.file = file};
  PngReader reader(input);
  if (reader.info == nullptr) fail_picture(path, file.size(), "no memory");
  if (!reader.read_header()) fail_at(path, static_cast<int64_t>(input.at), input.error);
  check_picture_size(reader.width, reader.height, path, file.size());
  if (reader.stored_row_bytes * reader.height / kDeflateRatio > file.size()) {
    fail_at(path, 16,
            fmt::format("{} by {} pixels are more than a file of {} bytes holds", reader.width, reader.height,
                        file.size()));
  }
  if (reader.row_bytes != size_t{3} * reader.width)
    fail_picture(path, file.size(), "cannot be converted to RGB");
  pixels.resize(reader.row_bytes * reader.height);
  if (!reader.read_rows(pixels.data())) fail_at(path, static_cast<int64_t>(input.at), input.error);
  return {.pixels = pixels.data(),
          .channels = 3,
          .height = static_cast<int>(reader.height),
          .width = static_cast<int>(reader.width),
          .layout = ImageView::Layout::kInterleaved};
}

}  // namespace

ImageView decode_picture(std::span<const uint8_t> file, const Path& path, std::vector<uint8_t>& pixels) {
  const bool is_png = file.size() >= std::size(kPngSignature) &&
                      std::equal(std::begin(kPngSignature), std::end(kPngSignature), file.begin());
  if (is_png) return decode_png(file, path, pixels);
  if (file.size() >= 2 && file[0] == 0xff && file[1] == 0xd8) return decode_jpeg(file, path, pixels);
  fail_at(path, 0, "neither a JPEG nor a PNG picture");
}

}  // namespace lockstep::images
