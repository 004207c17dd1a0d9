#pragma once

#include <lockstep/config.h>
#include <lockstep/data.h>
#include <lockstep/image_files.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "recipes/tensor_data.h"

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
  std::string device_data = "auto";  // yes, no, or auto: on a GPU, where they fit well
  TensorDataOptions tensors;         // of images, instead of `data`

  // without_validation: the recipe splits the training images itself.
  void add_to(ProgramOptions& table, bool without_validation = false);
};

// The set of this name, from where the options say. ConfigError lists where it was looked
// for.
ImageSet find_images(const std::string& name, const ImageDataOptions& options, Split split);

// ConfigError: more classes than the model has outputs, and this advice.
void check_classes(const ImageSource& images, int64_t outputs, const char* advice);

// The images, or the first options.max_samples of them, as batches for this rank's device.
// They lie there as bytes where the options say so and are cut out there; else threads of
// this process read ahead, into page-locked memory where batches go to a GPU. `loader` says
// size and order of the batches.
Loader image_loader(const ImageSet& images, const ImageDataOptions& options, const ImageTransform& transform,
                    LoaderOptions loader, const World& world);

}  // namespace lockstep::recipes

namespace torch::nn {
class Module;
}

namespace lockstep::recipes {

// Gives the weights of two-dimensional convolutions the layout in which a GPU computes
// them. Values and names stay as they are. Call it before an optimizer or a trainer has
// seen the parameters.
void use_channels_last(torch::nn::Module& module);

}  // namespace lockstep::recipes
