#pragma once

// Pictures as JPEG and PNG files, made by their libraries.

#include <png.h>
#include <turbojpeg.h>

#include <cstring>
#include <stdexcept>
#include <string>

namespace lockstep::test {

// `format`: TJPF_RGB, TJPF_GRAY or TJPF_CMYK; the bytes are the pixels.
inline std::string jpeg(const std::string& pixels, int width, int height, int format = TJPF_RGB,
                        int flags = 0) {
  unsigned char* out = nullptr;
  unsigned long size = 0;  // NOLINT(google-runtime-int): the library's type
  tjhandle handle = tjInitCompress();
  const int status =
      tjCompress2(handle, reinterpret_cast<const unsigned char*>(pixels.data()), width, 0, height, format,
                  &out, &size, format == TJPF_GRAY ? TJSAMP_GRAY : TJSAMP_444, 100, flags);
  std::string bytes(reinterpret_cast<char*>(out), size);
  tjFree(out);
  tjDestroy(handle);
  if (status != 0) throw std::runtime_error("tjCompress2");
  return bytes;
}

struct PngKind {
  int color = PNG_COLOR_TYPE_RGB;
  int depth = 8;
  int interlace = PNG_INTERLACE_NONE;
  bool has_gamma = false;
};

// The bytes are the rows as the file keeps them.
inline std::string png(const std::string& rows, int width, int height, PngKind kind = {}) {
  std::string bytes;
  png_structp out = png_create_write_struct(PNG_LIBPNG_VER_STRING, nullptr, nullptr, nullptr);
  png_infop info = png_create_info_struct(out);
  if (setjmp(png_jmpbuf(out)) != 0) throw std::runtime_error("libpng");
  png_set_write_fn(
      out, &bytes,
      [](png_structp png, png_bytep data, png_size_t size) {
        static_cast<std::string*>(png_get_io_ptr(png))->append(reinterpret_cast<char*>(data), size);
      },
      [](png_structp) {});
  png_set_IHDR(out, info, static_cast<png_uint_32>(width), static_cast<png_uint_32>(height), kind.depth,
               kind.color, kind.interlace, PNG_COMPRESSION_TYPE_DEFAULT, PNG_FILTER_TYPE_DEFAULT);
  if (kind.has_gamma) png_set_gAMA(out, info, 1.0);
  png_color palette[4] = {{10, 20, 30}, {40, 50, 60}, {70, 80, 90}, {100, 110, 120}};
  if (kind.color == PNG_COLOR_TYPE_PALETTE) png_set_PLTE(out, info, palette, 4);
  png_write_info(out, info);
  const int passes = png_set_interlace_handling(out);
  const size_t row_bytes = png_get_rowbytes(out, info);
  if (rows.size() != row_bytes * static_cast<size_t>(height))
    throw std::runtime_error("rows of another size");
  for (int pass = 0; pass < passes; ++pass) {
    for (int y = 0; y < height; ++y) {
      png_write_row(out, reinterpret_cast<png_const_bytep>(rows.data()) + static_cast<size_t>(y) * row_bytes);
    }
  }
  png_write_end(out, nullptr);
  png_destroy_write_struct(&out, &info);
  return bytes;
}

}  // namespace lockstep::test
