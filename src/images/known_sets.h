#pragma once

#include <lockstep/image_files.h>

#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::images {

// A set that has a name, and where it usually lies.
struct KnownSet {
  std::string name;
  // Below a folder for data, in the order in which they are looked at.
  std::vector<std::string> places;
  // Where a package of the system puts it.
  std::vector<std::filesystem::path> installed;
  // Null where the set is not at this place.
  std::function<ImageSet(const std::filesystem::path& place, Split split)> probe;
  // Its shape and size, for images in its place.
  SyntheticSet synthetic;
  // How to get it.
  std::string advice;
};

std::span<const KnownSet> known_sets();

}  // namespace lockstep::images
