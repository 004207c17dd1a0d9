// Transforms pictures as told: a JSON object a line on standard input, with the picture's
// bytes in the file "image" and the result in the file "out".

#include <lockstep/image_files.h>

#include <array>
#include <fstream>
#include <iostream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>

#include "images/image_pass.h"

namespace {

using lockstep::ImageTransform;
using lockstep::ImageView;
using nlohmann::json;

std::vector<uint8_t> read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

lockstep::ColorJitter jitter_of(const json& task) {
  const auto [brightness, contrast, saturation, hue] = task.value("color_jitter", std::array<double, 4>{});
  return {brightness, contrast, saturation, hue};
}

// Prints the part that is drawn for a size and a seed, or the change of colours.
void draw(const json& task) {
  if (task.contains("color_jitter")) {
    const lockstep::ColorFactors drawn = lockstep::draw_augmentation({.color_jitter = jitter_of(task)},
                                                                     {8, 8}, task.at("seed").get<uint64_t>())
                                             .colors;
    std::cout << json{drawn.order, drawn.brightness, drawn.contrast, drawn.saturation, drawn.hue} << '\n';
    return;
  }
  const ImageTransform transform{
      .random_resized_crop = 8, .crop_area = task.at("crop_area"), .crop_ratio = task.at("crop_ratio")};
  const auto [top, left, flip, part, colors] =
      draw_augmentation(transform, {task.at("height"), task.at("width")}, task.at("seed").get<uint64_t>());
  std::cout << top << ' ' << left << ' ' << part.height << ' ' << part.width << '\n';
}

void transform(const json& task) {
  const ImageTransform transform{.resize = task.value("resize", 0),
                                 .center_crop = task.value("center_crop", 0),
                                 .random_crop = task.value("random_crop", 0),
                                 .padding = task.value("padding", 0),
                                 .random_resized_crop = task.value("random_resized_crop", 0),
                                 .crop_area = task.value("crop_area", std::array{0.08, 1.0}),
                                 .crop_ratio = task.value("crop_ratio", std::array{3.0 / 4.0, 4.0 / 3.0}),
                                 .color_jitter = jitter_of(task),
                                 .mean = task.value("mean", std::vector<float>()),
                                 .stddev = task.value("stddev", std::vector<float>()),
                                 .layout = task.value("channels_last", false)
                                               ? ImageTransform::Layout::kChannelsLast
                                               : ImageTransform::Layout::kChannelsFirst};
  const std::vector<uint8_t> pixels = read_file(task.at("image"));
  const ImageView image{
      pixels.data(), task.at("channels"), task.at("height"), task.at("width"),
      task.value("planar", false) ? ImageView::Layout::kPlanar : ImageView::Layout::kInterleaved};
  lockstep::Augmentation augmentation{task.value("top", 0),
                                      task.value("left", 0),
                                      task.value("flip", false),
                                      {task.value("part_height", 0), task.value("part_width", 0)},
                                      {}};
  const auto factors = task.value("factors", std::array<double, 4>{1, 1, 1, 0});
  augmentation.colors = {task.value("order", std::array{0, 1, 2, 3}), factors[0], factors[1], factors[2],
                         factors[3]};
  const lockstep::ImageSize size = transformed_size(transform, {image.height, image.width});
  std::vector<float> out(static_cast<size_t>(size.height * size.width * image.channels));
  lockstep::images::ImagePass::Scratch scratch;
  lockstep::images::ImagePass(transform, image.channels).run(image, augmentation, scratch, out.data());
  std::ofstream(task.at("out").get<std::string>(), std::ios::binary)
      .write(reinterpret_cast<const char*>(out.data()),
             static_cast<std::streamsize>(out.size() * sizeof(float)));
}

}  // namespace

int main() {
  for (std::string line; std::getline(std::cin, line);) {
    const json task = json::parse(line);
    if (task.contains("seed")) {
      draw(task);
    } else {
      transform(task);
    }
  }
}
