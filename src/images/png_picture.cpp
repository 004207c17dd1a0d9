// libpng's plain interface, not its simplified one: that one applies the file's gamma,
// which no other reader of training data does. An error of libpng jumps back to the last
// setjmp, so the functions with one hold nothing that a jump could lose.
#include <fmt/format.h>
#include <png.h>

#include <algorithm>
#include <cstring>
#include <iterator>

#include "images/file_error.h"
#include "images/packed_images.h"
#include "images/picture.h"

namespace lockstep::images {
namespace {

using Path = std::filesystem::path;

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

  // All of the file before the rows; false: input.error says why.
  bool read_header();
  // The rows from `to` on; false: input.error says why.
  bool read_rows(uint8_t* to);

  png_structp png = nullptr;
  png_infop info = nullptr;
  png_uint_32 width = 0;
  png_uint_32 height = 0;
  uint64_t stored_row_bytes = 0;  // as they are in the file
  size_t row_bytes = 0;           // as they come out
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

}  // namespace

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
  if (reader.row_bytes != size_t{3} * reader.width) fail_picture(path, file.size(), "not to be had as RGB");
  pixels.resize(reader.row_bytes * reader.height);
  if (!reader.read_rows(pixels.data())) fail_at(path, static_cast<int64_t>(input.at), input.error);
  return {.pixels = pixels.data(),
          .channels = 3,
          .height = static_cast<int>(reader.height),
          .width = static_cast<int>(reader.width),
          .layout = ImageView::Layout::kInterleaved};
}

ImageView decode_picture(std::span<const uint8_t> file, const Path& path, std::vector<uint8_t>& pixels) {
  const bool is_png = file.size() >= std::size(kPngSignature) &&
                      std::equal(std::begin(kPngSignature), std::end(kPngSignature), file.begin());
  if (is_png) return decode_png(file, path, pixels);
  if (file.size() >= 2 && file[0] == 0xff && file[1] == 0xd8) return decode_jpeg(file, path, pixels);
  fail_at(path, 0, "neither a JPEG nor a PNG picture");
}

}  // namespace lockstep::images
