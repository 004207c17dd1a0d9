#pragma once

#include <lockstep/image_files.h>
#include <lockstep/image_transform.h>
#include <lockstep/loader.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "config/option_table.h"

namespace lockstep {
class World;
}

namespace lockstep::recipes {

// Where a recipe's images come from and how they are read: the flags that all recipes on
// images share.
struct ImageDataOptions {
  std::string data;  // a path, "synthetic", or empty: the usual places
  std::optional<int64_t> max_samples;
  std::optional<int64_t> num_workers;

  void add_to(config::OptionTable& table);
};

// The set of this name, from where the options say. ConfigError lists where it was looked
// for.
ImageSet find_images(const std::string& name, const ImageDataOptions& options, Split split);

// Options of a loader of training images, and of test images, for this rank's device:
// threads that read ahead, and page-locked memory where batches go to a GPU.
LoaderOptions train_loader_options(const ImageDataOptions& options, const World& world, int64_t batch_size);
LoaderOptions test_loader_options(const ImageDataOptions& options, const World& world, int64_t batch_size);

// The images, or the first options.max_samples of them, as a loader.
Loader image_loader(const ImageSet& images, const ImageDataOptions& options, const ImageTransform& transform,
                    const LoaderOptions& loader);

}  // namespace lockstep::recipes
