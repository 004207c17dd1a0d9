#include "recipes/image_data.h"

#include <lockstep/image_dataset.h>
#include <lockstep/image_subset.h>
#include <lockstep/world.h>

#include <algorithm>

#include "base/environment.h"
#include "cluster/topology.h"

namespace lockstep::recipes {
namespace {

constexpr int kMostWorkers = 8;

// A GPU leaves the CPUs of its rank to the readers. On CPUs one thread reads ahead: the
// model has the others.
int workers_of(const ImageDataOptions& options, const World& world) {
  if (options.num_workers) return static_cast<int>(*options.num_workers);
  if (!world.device().is_cuda()) return 1;
  const int threads =
      cluster::threads_of_this_process(base::Environment::of_process(), world.map().local_world_size);
  return std::clamp(threads, 1, kMostWorkers);
}

}  // namespace

void ImageDataOptions::add_to(config::OptionTable& table) {
  table.add("data", data, "folder or file of the data, or 'synthetic'; left out: the usual places")
      .add("max_samples", max_samples, "images of each part of the data at most", {.minimum = 1})
      .add("num_workers", num_workers, "threads of each rank that read ahead; 0: none", {.minimum = 0});
}

ImageSet find_images(const std::string& name, const ImageDataOptions& options, Split split) {
  return find_image_set(name, options.data, split);
}

LoaderOptions train_loader_options(const ImageDataOptions& options, const World& world, int64_t batch_size) {
  LoaderOptions loader = test_loader_options(options, world, batch_size);
  loader.shuffle = true;
  return loader;
}

LoaderOptions test_loader_options(const ImageDataOptions& options, const World& world, int64_t batch_size) {
  LoaderOptions loader;
  loader.batch_size = batch_size;
  loader.num_workers = workers_of(options, world);
  loader.pin_memory = world.device().is_cuda();
  return loader;
}

Loader image_loader(const ImageSet& images, const ImageDataOptions& options, const ImageTransform& transform,
                    const LoaderOptions& loader) {
  const ImageSet some = first_images(images, options.max_samples.value_or(images->size()));
  return Loader(ImageDataset(some, transform), loader);
}

}  // namespace lockstep::recipes
