#pragma once

#include <lockstep/image_files.h>

#include <filesystem>
#include <string_view>

#include "base/environment.h"

namespace lockstep::images {

// find_image_set() with an explicit environment.
ImageSet find_images(std::string_view name, const std::filesystem::path& data_path, Split split,
                     const base::Environment& environment);

// open_image_folder(); null if the folder has no class folders with pictures. ConfigError: the
// pictures or annotations in it are damaged.
ImageSet probe_image_folder(const std::filesystem::path& root, Split split);

}  // namespace lockstep::images
