#include "images/format_probe.h"

#include <algorithm>
#include <array>
#include <optional>

#include "images/file_error.h"

namespace lockstep::images {
namespace {

using Path = std::filesystem::path;

bool is_file(const Path& path) {
  std::error_code ignored;
  return std::filesystem::is_regular_file(path, ignored);
}

bool is_folder(const Path& path) {
  std::error_code ignored;
  return std::filesystem::is_directory(path, ignored);
}

bool is_archive(const Path& path, std::string_view word) {
  const std::string name = path.filename().string();
  return is_file(path) && name.find(word) != std::string::npos &&
         (name.find(".tar") != std::string::npos || name.ends_with(".tgz") || name.ends_with(".txz"));
}

// Which part of a set a file's name says.
bool is_of_split(std::string_view name, Split split) {
  if (split == Split::kTrain) return name.find("train") != std::string_view::npos;
  return name.find("t10k") != std::string_view::npos || name.find("test") != std::string_view::npos;
}

std::vector<Path> files_of(const Path& folder) {
  std::vector<Path> files;
  std::error_code error;
  for (std::filesystem::directory_iterator next(folder, error), end; !error && next != end;
       next.increment(error)) {
    if (is_file(next->path())) files.push_back(next->path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

// The one file of the split whose name ends so, plain before gzip; two different are one
// too many to choose from.
std::optional<Path> idx_file(const std::vector<Path>& files, std::string_view kind, Split split) {
  for (const std::string_view packed : {"", ".gz"}) {
    std::optional<Path> found;
    for (const Path& file : files) {
      const std::string name = file.filename().string();
      const bool is_kind = name.ends_with(fmt::format("-{}-ubyte{}", kind, packed)) ||
                           name.ends_with(fmt::format(".{}-ubyte{}", kind, packed));
      if (!is_kind || !is_of_split(name, split)) continue;
      if (found) {
        throw ConfigError(kComponent, fmt::format("two sets in one folder, name one of them: '{}' and '{}'",
                                                  found->string(), file.string()));
      }
      found = file;
    }
    if (found) return found;
  }
  return std::nullopt;
}

}  // namespace

ImageSet probe_idx(const Path& folder, Split split, const IdxClasses& classes) {
  const std::vector<Path> files = files_of(folder);
  const std::optional<Path> images = idx_file(files, "idx3", split);
  if (!images) return nullptr;
  const std::optional<Path> labels = idx_file(files, "idx1", split);
  if (!labels) {
    throw ConfigError(kComponent, fmt::format("no file of labels (*-labels-idx1-ubyte, .gz) beside '{}'",
                                              images->string()));
  }
  return open_idx(*images, *labels, classes);
}

ImageSet probe_cifar10(const Path& path, Split split) {
  const char* first = split == Split::kTrain ? "data_batch_1.bin" : "test_batch.bin";
  if (is_file(path / first) || is_archive(path, "cifar-10-")) return open_cifar10(path, split);
  return nullptr;
}

ImageSet probe_cifar100(const Path& path, Split split) {
  const char* first = split == Split::kTrain ? "train.bin" : "test.bin";
  if (is_file(path / first) || is_archive(path, "cifar-100-")) return open_cifar100(path, split);
  return nullptr;
}

ImageSet probe_any(const Path& path, Split split) {
  if (is_folder(path)) {
    if (ImageSet set = probe_idx(path, split, {})) return set;
  }
  if (ImageSet set = probe_cifar10(path, split)) return set;
  if (ImageSet set = probe_cifar100(path, split)) return set;
  return nullptr;
}

}  // namespace lockstep::images
