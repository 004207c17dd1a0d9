#include <fmt/format.h>
#include <lockstep/image_files.h>

#include <algorithm>

#include "base/environment.h"
#include "images/file_error.h"
#include "images/find.h"
#include "images/format_probe.h"
#include "images/known_sets.h"

namespace lockstep {
namespace images {
namespace {

using Path = std::filesystem::path;

// Where data is looked for when nobody says where.
std::vector<Path> data_roots(const base::Environment& environment) {
  std::vector<Path> roots = {"data"};
  if (const auto home = environment.get("HOME"); home && !home->empty()) {
    roots.push_back(Path(*home) / ".cache/lockstep");
    roots.push_back(Path(*home) / ".cache");
  }
  return roots;
}

const KnownSet& known_set(std::string_view name) {
  const auto sets = known_sets();
  const auto found =
      std::find_if(sets.begin(), sets.end(), [&](const KnownSet& set) { return set.name == name; });
  if (found != sets.end()) return *found;
  std::vector<std::string> names;
  for (const KnownSet& set : sets) names.push_back(set.name);
  throw ConfigError(
      kComponent, fmt::format("no image set has the name '{}'; known are {}", name, fmt::join(names, ", ")));
}

std::string lines_of(const std::vector<Path>& places) {
  std::string text;
  for (const Path& place : places) text += fmt::format("\n  {}", place.string());
  return text;
}

const char* name_of(Split split) { return split == Split::kTrain ? "training" : "test"; }

}  // namespace

ImageSet find(std::string_view name, const Path& data_path, Split split,
              const base::Environment& environment) {
  const KnownSet& set = known_set(name);
  // The variable means what the option --data means, in programs without that option too.
  const Path path = data_path.empty() ? Path(environment.get("LOCKSTEP_DATA").value_or("")) : data_path;
  if (path == kSynthetic) return synthetic_images(set.synthetic, split);
  std::vector<Path> places;
  const bool is_named = !path.empty();
  for (const Path& root : is_named ? std::vector<Path>{path} : data_roots(environment)) {
    for (const std::string& place : set.places) places.push_back(place.empty() ? root : root / place);
  }
  if (!is_named) places.insert(places.end(), set.installed.begin(), set.installed.end());
  for (const Path& place : places) {
    if (ImageSet found = set.probe(place, split)) return found;
  }
  if (is_named) {
    if (ImageSet found = probe_any(path, split)) return found;
  }
  throw ConfigError(kComponent, fmt::format("the {} part of {} is at none of these places; {}:{}",
                                            name_of(split), name, set.advice, lines_of(places)));
}

}  // namespace images

ImageSet find_image_set(std::string_view name, const std::filesystem::path& data_path, Split split) {
  return images::find(name, data_path, split, base::Environment::of_process());
}

ImageSet open_images(const std::filesystem::path& path, Split split) {
  if (ImageSet found = images::probe_any(path, split)) return found;
  throw ConfigError(images::kComponent, fmt::format("'{}' is no image set whose {} part we can read: {}",
                                                    path.string(), images::name_of(split), images::kFormats));
}

}  // namespace lockstep
