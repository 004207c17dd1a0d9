#include "recipes/image_data.h"

#include <fmt/format.h>
#include <lockstep/error.h>
#include <lockstep/images.h>
#include <lockstep/launch.h>
#include <torch/torch.h>

#include <algorithm>

namespace lockstep::recipes {
namespace {

constexpr int kMostWorkers = 8;
constexpr int64_t kMostBytesOnDevice = int64_t{2} << 30;

// A GPU leaves the CPUs of its rank to the readers. On CPUs one thread reads ahead: the
// model has the others.
int workers_of(const ImageDataOptions& options, const World& world) {
  if (options.num_workers) return static_cast<int>(*options.num_workers);
  if (!world.device().is_cuda()) return 1;
  return std::min(world.cpu_threads(), kMostWorkers);
}

// What DeviceImageDataset keeps of them.
int64_t bytes_on_device(const ImageSource& images, const ImageTransform& transform) {
  if (images.size() == 0) return 0;
  std::vector<uint8_t> scratch;
  const ImageView first = images.image(0, scratch);
  ImageTransform before_crop = transform;
  before_crop.random_crop = 0;
  before_crop.padding = 0;
  const ImageSize size = transformed_size(before_crop, {first.height, first.width});
  const int64_t border = 2 * int64_t{transform.padding};
  return images.size() * first.channels * (size.height + border) * (size.width + border);
}

bool belongs_on_device(const ImageSource& images, const ImageDataOptions& options,
                       const ImageTransform& transform, const World& world) {
  if (options.device_data != "auto") return options.device_data == "yes";
  return world.device().is_cuda() && bytes_on_device(images, transform) <= kMostBytesOnDevice;
}

}  // namespace

void check_classes(const ImageSource& images, int64_t outputs, const char* advice) {
  if (images.num_classes() <= outputs) return;
  throw ConfigError("train", fmt::format("the data have {} classes and the model {} outputs: {}",
                                         images.num_classes(), outputs, advice));
}

void ImageDataOptions::add_to(ProgramOptions& table, bool without_validation) {
  table.add("data", data, "folder or file of the data, or 'synthetic'; left out: the usual places")
      .add("max_samples", max_samples, "maximum number of images of each split", {.minimum = 1})
      .add("device_data", device_data, "keep the images on the device; auto: up to 2 GiB on GPUs",
           {.choices = {"auto", "yes", "no"}})
      .add("num_workers", num_workers, "threads of each rank that read ahead; 0: none", {.minimum = 0});
  tensors.add_to(table, without_validation);
}

ImageSet find_images(const std::string& name, const ImageDataOptions& options, Split split) {
  const TensorDataOptions& tensors = options.tensors;
  if (tensors.given()) {
    if (split == Split::kTrain) return open_image_tensors(tensors.inputs, tensors.targets);
    if (tensors.has_validation()) return open_image_tensors(tensors.val_inputs, tensors.val_targets);
    throw ConfigError("train", fmt::format("{} validates: give --val_inputs and --val_targets too", name));
  }
  return find_image_set(name, options.data, split);
}

Loader image_loader(const ImageSet& images, const ImageDataOptions& options, const ImageTransform& transform,
                    LoaderOptions loader, const World& world) {
  const ImageSet some = first_images(images, options.max_samples.value_or(images->size()));
  if (belongs_on_device(*some, options, transform, world)) {
    return Loader(DeviceImageDataset(*some, transform, world.device()), loader);
  }
  loader.num_workers = workers_of(options, world);
  loader.pin_memory = world.device().is_cuda();
  return Loader(ImageDataset(some, transform), loader);
}

void use_channels_last(torch::nn::Module& module) {
  const torch::NoGradGuard no_grad;
  for (const at::Tensor& parameter : module.parameters()) {
    if (parameter.dim() == 4) parameter.set_data(parameter.contiguous(at::MemoryFormat::ChannelsLast));
  }
}

}  // namespace lockstep::recipes
