#pragma once

#include <lockstep/image_files.h>

#include <filesystem>
#include <string_view>

#include "base/environment.h"

namespace lockstep::images {

// find_image_set with an environment that is handed to it.
ImageSet find(std::string_view name, const std::filesystem::path& data_path, Split split,
              const base::Environment& environment);

}  // namespace lockstep::images
