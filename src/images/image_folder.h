#pragma once

#include <lockstep/image_files.h>

#include <filesystem>

namespace lockstep::images {

// Null where the folder holds no pictures by class.
ImageSet probe_image_folder(const std::filesystem::path& root, Split split);

}  // namespace lockstep::images
