// A folder for each class, pictures in it or below it: torchvision's ImageFolder, in its order.
#include "images/image_folder.h"

#include <fmt/format.h>
#include <lockstep/image_files.h>

#include <algorithm>

#include "base/check.h"
#include "images/annotations.h"
#include "images/file_error.h"
#include "images/packed_images.h"
#include "images/picture.h"
#include "images/shared_bytes.h"

namespace lockstep {
namespace images {
namespace {

using Path = std::filesystem::path;

// Folders in folders, links among them: deep enough for any set, and an end to a circle.
constexpr int kMaxDepth = 8;

struct Picture {
  std::string file;  // below the root
  int32_t label = 0;
};

class FolderImages final : public ImageSource {
 public:
  FolderImages(Path root, std::vector<Picture> pictures, std::vector<std::string> classes)
      : root_(std::move(root)), pictures_(std::move(pictures)), classes_(std::move(classes)) {}

  int64_t size() const override { return static_cast<int64_t>(pictures_.size()); }
  int64_t num_classes() const override { return static_cast<int64_t>(classes_.size()); }
  std::span<const std::string> class_names() const override { return classes_; }
  int64_t label(int64_t index) const override { return picture(index).label; }

  ImageView image(int64_t index, std::vector<uint8_t>& scratch) const override {
    const Path path = root_ / picture(index).file;
    const SharedBytes file = read_file(path);
    return decode_picture(file.bytes, path, scratch);
  }

 private:
  const Picture& picture(int64_t index) const {
    base::check(0 <= index && index < size(), "the index of an image is in range");
    return pictures_[static_cast<size_t>(index)];
  }

  Path root_;
  std::vector<Picture> pictures_;
  std::vector<std::string> classes_;
};

[[noreturn]] void fail_folder(const Path& path, const std::string& reason) {
  throw ConfigError(kComponent, fmt::format("cannot read the folder '{}': {}", path.string(), reason));
}

// The folders directly in one, sorted; hidden ones are none.
std::vector<std::string> folders_of(const Path& path) {
  std::vector<std::string> names;
  std::error_code error;
  for (std::filesystem::directory_iterator next(path, error), end; !error && next != end;
       next.increment(error)) {
    std::error_code ignored;
    const std::string name = next->path().filename().string();
    if (!name.starts_with('.') && next->is_directory(ignored)) names.push_back(name);
  }
  if (error) fail_folder(path, error.message());
  std::sort(names.begin(), names.end());
  return names;
}

// The pictures of a class: folder by folder in the order of their paths.
std::vector<Path> pictures_below(const Path& root, const std::string& name) {
  using Options = std::filesystem::directory_options;
  std::vector<Path> files;
  std::error_code error;
  for (std::filesystem::recursive_directory_iterator
           next(root / name, Options::follow_directory_symlink, error),
       end;
       !error && next != end; next.increment(error)) {
    if (next.depth() >= kMaxDepth) next.disable_recursion_pending();
    std::error_code ignored;
    if (is_picture(next->path()) && next->is_regular_file(ignored)) {
      files.push_back(next->path().lexically_relative(root));
    }
  }
  if (error) fail_folder(root / name, error.message());
  std::sort(files.begin(), files.end(), [](const Path& a, const Path& b) {
    const std::string folder_a = a.parent_path().string(), folder_b = b.parent_path().string();
    return folder_a != folder_b ? folder_a < folder_b : a.filename().string() < b.filename().string();
  });
  return files;
}

// The folder of a part of the set; empty where it has none.
Path part_folder(const Path& root, Split split) {
  std::error_code ignored;
  for (const char* name : split == Split::kTrain ? std::vector{"train"} : std::vector{"val", "test"}) {
    if (std::filesystem::is_directory(root / name, ignored)) return root / name;
  }
  return {};
}

// Folders of pictures: a class each. Empty where nothing below is a picture.
std::vector<std::string> classes_of(const Path& folder) {
  std::vector<std::string> names = folders_of(folder);
  const bool any = std::any_of(names.begin(), names.end(), [&](const std::string& name) {
    return !pictures_below(folder, name).empty();
  });
  return any ? names : std::vector<std::string>();
}

std::vector<Picture> collect(const Path& folder, const std::vector<std::string>& classes, Split split) {
  std::vector<Picture> pictures;
  for (const std::string& name : folders_of(folder)) {
    const auto found = std::lower_bound(classes.begin(), classes.end(), name);
    if (found == classes.end() || *found != name) {
      throw ConfigError(kComponent, fmt::format("'{}' is a class that the training part does not have",
                                                (folder / name).string()));
    }
    const std::vector<Path> files = pictures_below(folder, name);
    if (files.empty() && split == Split::kTrain) {
      throw ConfigError(kComponent, fmt::format("no picture (.jpg, .jpeg, .png) is in the class folder '{}'",
                                                (folder / name).string()));
    }
    for (const Path& file : files) {
      pictures.push_back({file.string(), static_cast<int32_t>(found - classes.begin())});
    }
  }
  return pictures;
}

std::vector<Picture> collect(const Annotations& annotations, const std::vector<std::string>& classes) {
  std::vector<Picture> pictures;
  for (const Annotations::Line& line : annotations.lines) {
    const auto found = std::lower_bound(classes.begin(), classes.end(), line.class_name);
    if (found == classes.end() || *found != line.class_name) {
      fail_at_line(annotations.path, line.number,
                   fmt::format("'{}' is a class that the training part does not have", line.class_name));
    }
    pictures.push_back(
        {(Path(kAnnotatedPictures) / line.file).string(), static_cast<int32_t>(found - classes.begin())});
  }
  return pictures;
}

}  // namespace

ImageSet probe_image_folder(const Path& root, Split split) {
  std::error_code ignored;
  if (!std::filesystem::is_directory(root, ignored)) return nullptr;
  Path train = part_folder(root, Split::kTrain);
  Path folder = part_folder(root, split);
  const bool is_one_part = train.empty() && part_folder(root, Split::kTest).empty();
  if (is_one_part && split == Split::kTrain) train = folder = root;
  if (folder.empty()) return nullptr;
  const std::optional<Annotations> annotations = read_annotations(folder);
  const bool has_classes = !train.empty() && train != folder;
  const std::vector<std::string> classes = has_classes   ? classes_of(train)
                                           : annotations ? annotations->classes()
                                                         : classes_of(folder);
  if (classes.empty()) return nullptr;
  std::vector<Picture> pictures =
      annotations ? collect(*annotations, classes) : collect(folder, classes, split);
  if (pictures.empty()) return nullptr;
  return std::make_shared<FolderImages>(folder, std::move(pictures), classes);
}

}  // namespace images

ImageSet open_image_folder(const std::filesystem::path& root, Split split) {
  if (ImageSet set = images::probe_image_folder(root, split)) return set;
  throw ConfigError(
      images::kComponent,
      fmt::format("'{}' has no folder for each class with .jpg, .jpeg or .png pictures in it, neither itself "
                  "nor below {}",
                  root.string(), split == Split::kTrain ? "train" : "val or test"));
}

}  // namespace lockstep
