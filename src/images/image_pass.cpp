#include "images/image_pass.h"

#include <fmt/format.h>
#include <lockstep/error.h>

#include <algorithm>
#include <cstring>

#include "images/arrange.h"
#include "images/color_jitter.h"
#include "images/pixel_values.h"

namespace lockstep::images {
namespace {

// The tile and its converted values fit into the first level cache.
constexpr int kTileBytes = 4096;

ImageTransform validated(const ImageTransform& transform) {
  transform.validate();
  return transform;
}

// A small picture is at a random place of a large set: prefetch all of it, instead of one row at a
// time on demand.
void prefetch_small(const ImageView& image) {
  constexpr int kCacheLine = 64;
  const int64_t bytes = static_cast<int64_t>(image.channels) * image.height * image.width;
  if (bytes > kTileBytes) return;
  for (int64_t i = 0; i < bytes; i += kCacheLine) __builtin_prefetch(image.pixels + i);
}

bool is_whole(const ImageWindow& window, const ImageView& image) {
  return window.top == 0 && window.left == 0 && window.size == ImageSize{image.height, image.width} &&
         window.visible.bottom == image.height && window.visible.right == image.width;
}

// The part that the augmentation names, as a picture of its own in `memory`.
ImageView copy_part(const ImageView& image, const Augmentation& augmentation, std::vector<uint8_t>& memory) {
  const auto [height, width] = augmentation.part;
  if (height < 1 || width < 1 || augmentation.top < 0 || augmentation.left < 0 ||
      augmentation.top + height > image.height || augmentation.left + width > image.width) {
    throw ConfigError("images",
                      fmt::format("a part of {}x{} pixels at ({}, {}) is not in a picture of {}x{}", height,
                                  width, augmentation.top, augmentation.left, image.height, image.width));
  }
  const bool interleaved = image.layout == ImageView::Layout::kInterleaved;
  const int planes = interleaved ? 1 : image.channels;
  const int pixel = interleaved ? image.channels : 1;
  const auto row_bytes = static_cast<size_t>(width) * static_cast<size_t>(pixel);
  memory.resize(row_bytes * static_cast<size_t>(height) * static_cast<size_t>(planes));
  uint8_t* to = memory.data();
  for (int plane = 0; plane < planes; ++plane) {
    for (int y = 0; y < height; ++y, to += row_bytes) {
      const ptrdiff_t row = static_cast<ptrdiff_t>(plane) * image.height + augmentation.top + y;
      std::memcpy(to, image.pixels + (row * image.width + augmentation.left) * pixel, row_bytes);
    }
  }
  return {memory.data(), image.channels, height, width, image.layout};
}

template <typename Byte>
PixelRows<Byte> rows_at(Byte* at, bool interleaved, int channels, int width, ptrdiff_t channel_step) {
  if (interleaved) return {{at, 1, channels}, static_cast<ptrdiff_t>(width) * channels};
  return {{at, channel_step, 1}, width};
}

}  // namespace

ImagePass::ImagePass(const ImageTransform& transform, int channels)
    : transform_(validated(transform)), values_(transform_, channels) {}

void ImagePass::run(const ImageView& image, uint64_t seed, Scratch& scratch, void* out) const {
  run(image, draw_augmentation(transform_, {image.height, image.width}, seed), scratch, out);
}

void ImagePass::run(const ImageView& image, const Augmentation& augmentation, Scratch& scratch,
                    void* out) const {
  if (image.channels != channels() || image.height < 1 || image.width < 1) {
    throw ConfigError("images", fmt::format("a picture of {} channel(s) and {}x{} pixels, expected {} "
                                            "channel(s) and at least one pixel",
                                            image.channels, image.height, image.width, channels()));
  }
  prefetch_small(image);
  if (transform_.random_resized_crop > 0) {
    const int side = transform_.random_resized_crop;
    return run(copy_part(image, augmentation, scratch.part), {side, side},
               {0, 0, {side, side}, {0, 0, side, side}}, augmentation, scratch, out);
  }
  const ImageSize to = resized_size(transform_, {image.height, image.width});
  run(image, to, sample_window(transform_, to, augmentation), augmentation, scratch, out);
}

void ImagePass::run(const ImageView& image, ImageSize to, const ImageWindow& window,
                    const Augmentation& augmentation, Scratch& scratch, void* out) const {
  const Placed picture = resized(image, to, window, scratch.resize);
  if (transform_.color_jitter.is_set()) {
    return run_with_colors(picture, window, augmentation, scratch.colors, out);
  }
  const bool flip = augmentation.flip;
  const bool channels_last = transform_.layout == ImageTransform::Layout::kChannelsLast;
  const bool interleaved = picture.image.layout == ImageView::Layout::kInterleaved;
  const ptrdiff_t plane = static_cast<ptrdiff_t>(window.size.height) * window.size.width;
  if (transform_.type == ImageTransform::Type::kUInt8) {
    return arrange_rows(picture, window, flip, 0, window.size.height, plane, static_cast<uint8_t*>(out));
  }
  if (!flip && (channels() == 1 || channels_last == interleaved) && is_whole(window, picture.image)) {
    return convert_rows(picture.image.pixels, window.size, 0, window.size.height, out);
  }
  const int row_bytes = window.size.width * channels();
  const int rows = std::max(1, kTileBytes / row_bytes);
  scratch.tile.resize(static_cast<size_t>(rows) * static_cast<size_t>(row_bytes));
  for (int first = 0; first < window.size.height; first += rows) {
    const int last = std::min(first + rows, window.size.height);
    const ptrdiff_t tile_plane = static_cast<ptrdiff_t>(last - first) * window.size.width;
    arrange_rows(picture, window, flip, first, last, tile_plane, scratch.tile.data());
    convert_rows(scratch.tile.data(), window.size, first, last, out);
  }
}

void ImagePass::run_with_colors(const Placed& picture, const ImageWindow& window,
                                const Augmentation& augmentation, std::vector<uint8_t>& memory,
                                void* out) const {
  const bool keeps_bytes = transform_.type == ImageTransform::Type::kUInt8;
  const ptrdiff_t plane = static_cast<ptrdiff_t>(window.size.height) * window.size.width;
  const auto count = static_cast<size_t>(plane);
  if (!keeps_bytes) memory.resize(count * static_cast<size_t>(channels()));
  auto* const bytes = keeps_bytes ? static_cast<uint8_t*>(out) : memory.data();
  arrange_rows(picture, window, augmentation.flip, 0, window.size.height, plane, bytes);
  const bool channels_last = transform_.layout == ImageTransform::Layout::kChannelsLast;
  const PixelRun<uint8_t> pixels =
      channels_last ? PixelRun<uint8_t>{bytes, 1, channels()} : PixelRun<uint8_t>{bytes, plane, 1};
  change_colors(pixels, channels(), count, transform_.color_jitter, augmentation.colors);
  if (!keeps_bytes) convert_rows(bytes, window.size, 0, window.size.height, out);
}

ImagePass::Placed ImagePass::resized(const ImageView& image, ImageSize to, const ImageWindow& window,
                                     ResizeScratch& scratch) const {
  if (to == ImageSize{image.height, image.width}) return {image, 0, 0};
  const ImageWindow::Rectangle& visible = window.visible;
  const ImageWindow::Rectangle part{std::max(visible.top, window.top), std::max(visible.left, window.left),
                                    std::min(visible.bottom, window.top + window.size.height),
                                    std::min(visible.right, window.left + window.size.width)};
  if (part.bottom <= part.top || part.right <= part.left) return {image, 0, 0};  // all of it is black
  return {resize_part(image, to, part, scratch), part.top, part.left};
}

void ImagePass::arrange_rows(const Placed& picture, const ImageWindow& window, bool flip, int first, int last,
                             ptrdiff_t channel_step, uint8_t* out) const {
  const ImageView& image = picture.image;
  const bool channels_last = transform_.layout == ImageTransform::Layout::kChannelsLast;
  const ImageWindow::Rectangle& visible = window.visible;
  const int top = std::max(visible.top, window.top + first);
  const int bottom = std::min(visible.bottom, window.top + last);
  const int left = std::max(visible.left, window.left);
  const int right = std::min(visible.right, window.left + window.size.width);
  const int rows = bottom - top;
  const int pixels = right - left;
  if (rows < last - first || pixels < window.size.width) {
    const size_t row = static_cast<size_t>(window.size.width);
    const size_t bytes = static_cast<size_t>(last - first) * row;
    if (channels_last) {
      std::memset(out, 0, bytes * static_cast<size_t>(channels()));
    } else {
      for (int c = 0; c < channels(); ++c) std::memset(out + c * channel_step, 0, bytes);
    }
  }
  if (rows <= 0 || pixels <= 0) return;
  PixelRows<const uint8_t> source =
      rows_at(image.pixels, image.layout == ImageView::Layout::kInterleaved, channels(), image.width,
              static_cast<ptrdiff_t>(image.height) * image.width);
  source.first.at += (top - picture.top) * source.row_step + (left - picture.left) * source.first.pixel_step;
  PixelRows<uint8_t> target = rows_at(out, channels_last, channels(), window.size.width, channel_step);
  const int before = flip ? window.left + window.size.width - right : left - window.left;
  target.first.at += (top - window.top - first) * target.row_step + before * target.first.pixel_step;
  arrange(source, target, channels(), rows, pixels, flip);
}

void ImagePass::convert_rows(const uint8_t* tile, ImageSize size, int first, int last, void* out) const {
  const size_t pixels = static_cast<size_t>(last - first) * static_cast<size_t>(size.width);
  const size_t before = static_cast<size_t>(first) * static_cast<size_t>(size.width);
  const size_t element = bytes_of(transform_.type);
  auto* bytes = static_cast<char*>(out);
  if (transform_.layout == ImageTransform::Layout::kChannelsLast) {
    const auto all = static_cast<size_t>(channels());
    return convert_interleaved(values_, tile, pixels * all, bytes + before * all * element);
  }
  const size_t plane = static_cast<size_t>(size.height) * static_cast<size_t>(size.width);
  for (int c = 0; c < channels(); ++c) {
    const auto channel = static_cast<size_t>(c);
    convert_channel(values_, c, tile + channel * pixels, pixels,
                    bytes + (channel * plane + before) * element);
  }
}

}  // namespace lockstep::images
