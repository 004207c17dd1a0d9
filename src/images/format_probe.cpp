#include "images/format_probe.h"

#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>
#include <optional>

#include "images/file_error.h"
#include "images/image_folder.h"

namespace lockstep::images {
namespace {

using Path = std::filesystem::path;

bool is_file(const Path& path) {
  std::error_code ignored;
  return std::filesystem::is_regular_file(path, ignored);
}

bool is_archive(const Path& path, std::string_view word) {
  const std::string name = path.filename().string();
  return is_file(path) && name.find(word) != std::string::npos &&
         (name.find(".tar") != std::string::npos || name.ends_with(".tgz") || name.ends_with(".txz"));
}

bool has_word(std::string_view name, std::initializer_list<std::string_view> words) {
  return std::any_of(words.begin(), words.end(),
                     [&](std::string_view word) { return name.find(word) != std::string_view::npos; });
}

// Which part of a set a file's name says; nullopt: none.
std::optional<Split> split_of(std::string_view name) {
  if (has_word(name, {"train"})) return Split::kTrain;
  if (has_word(name, {"t10k", "test", "val"})) return Split::kTest;
  return std::nullopt;
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

// A folder, or the one that a file lies in.
Path folder_of(const Path& path) {
  if (!is_file(path)) return path;
  return path.has_parent_path() ? path.parent_path() : Path(".");
}

[[noreturn]] void fail_two(const Path& one, const Path& other) {
  throw ConfigError(kComponent, fmt::format("two sets in one folder, keep one of them there: '{}' and '{}'",
                                            one.string(), other.string()));
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
      if (!is_kind || split_of(name) != split) continue;
      if (found) fail_two(*found, file);
      found = file;
    }
    if (found) return found;
  }
  return std::nullopt;
}

// The file of the split with one of these suffixes and the word in its name: the path
// itself, or in the folder that it is or lies in. A file whose name says no split is the
// training part, if it is alone.
std::optional<Path> one_file(const Path& path, Split split, std::initializer_list<std::string_view> suffixes,
                             std::string_view word = "") {
  const auto is_kind = [&](const Path& file) {
    const std::string suffix = file.extension().string();
    return std::find(suffixes.begin(), suffixes.end(), suffix) != suffixes.end() &&
           has_word(file.filename().string(), {word});
  };
  const auto is_part = [&](const Path& file) { return split_of(file.filename().string()) == split; };
  if (is_file(path)) {
    if (!is_kind(path)) return std::nullopt;
    const bool says_none = !split_of(path.filename().string());
    if (is_part(path) || (says_none && split == Split::kTrain)) return path;
    if (says_none) return std::nullopt;
  }
  std::vector<Path> files = files_of(folder_of(path));
  std::erase_if(files, [&](const Path& file) { return !is_kind(file); });
  const bool is_alone = files.size() == 1 && !split_of(files[0].filename().string());
  if (is_alone && split == Split::kTrain) return files[0];
  std::erase_if(files, [&](const Path& file) { return !is_part(file); });
  if (files.size() > 1) fail_two(files[0], files[1]);
  return files.empty() ? std::nullopt : std::optional(files[0]);
}

}  // namespace

ImageSet probe_idx(const Path& path, Split split, const ImageClasses& classes) {
  if (is_file(path) && path.filename().string().find("-ubyte") == std::string::npos) return nullptr;
  const std::vector<Path> files = files_of(folder_of(path));
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

ImageSet probe_hdf5(const Path& path, Split split) {
  const auto file = one_file(path, split, {".h5", ".hdf5"});
  return file ? open_hdf5(*file) : nullptr;
}

ImageSet probe_tensors(const Path& path, Split split) {
  if (const auto file = one_file(path, split, {".safetensors"})) return open_safetensors(*file);
  const auto images = one_file(path, split, {".npy"}, "images");
  if (!images) return nullptr;
  const auto labels = one_file(folder_of(*images), split, {".npy"}, "labels");
  if (!labels) {
    throw ConfigError(kComponent,
                      fmt::format("no .npy file with 'labels' in its name beside '{}'", images->string()));
  }
  return open_npy(*images, *labels);
}

ImageSet probe_any(const Path& path, Split split) {
  if (ImageSet set = probe_idx(path, split, {})) return set;
  if (ImageSet set = probe_cifar10(path, split)) return set;
  if (ImageSet set = probe_cifar100(path, split)) return set;
  if (ImageSet set = probe_hdf5(path, split)) return set;
  if (ImageSet set = probe_tensors(path, split)) return set;
  return probe_image_folder(path, split);
}

}  // namespace lockstep::images
