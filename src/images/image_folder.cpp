// One folder for each class, with pictures in it or below it, in the order of torchvision's ImageFolder.

#include "images/find_images.h"

#include <fmt/format.h>
#include <lockstep/image_files.h>

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>
#include "base/folder.h"

#include "base/check.h"
#include "images/file_bytes.h"
#include "images/packed_images.h"
#include "images/picture.h"

namespace lockstep {
namespace images {
namespace {

using Path = std::filesystem::path;

bool is_picture(const Path& path) {
  std::string suffix = path.extension().string();
  std::transform(suffix.begin(), suffix.end(), suffix.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return suffix == ".jpg" || suffix == ".jpeg" || suffix == ".png";
}

[[noreturn]] void fail_folder(const Path& path, const std::string& reason) {
  throw ConfigError(kComponent, fmt::format("cannot read the folder '{}': {}", path.string(), reason));
}

// --- Tiny ImageNet's annotations ---

// The classes of the pictures in the folder `images`, in val_annotations.txt beside that folder: each
// line has a file name, a class and further fields, separated by tabs.
struct Annotations {
  struct Line {
    std::string file;
    std::string class_name;
    int64_t number = 0;  // in the file, from 1
  };

  Path path;
  std::vector<Line> lines;  // in the file's order

  // Sorted, without duplicates.
  std::vector<std::string> classes() const {
    std::vector<std::string> names;
    for (const Line& line : lines) names.push_back(line.class_name);
    std::sort(names.begin(), names.end());
    names.erase(std::unique(names.begin(), names.end()), names.end());
    return names;
  }
};

constexpr char kAnnotationsFile[] = "val_annotations.txt";
constexpr char kAnnotatedPictures[] = "images";
// The limit of file systems.
constexpr size_t kMaxName = 255;

// A name for messages: shortened, without control characters.
std::string shown(std::string_view name) {
  constexpr size_t kShown = 80;
  std::string text;
  for (const char c : name.substr(0, kShown))
    text += std::isprint(static_cast<unsigned char>(c)) != 0 ? c : '?';
  return name.size() > kShown ? text + "..." : text;
}

bool is_plain(std::string_view name) {
  return !name.empty() && name.size() <= kMaxName && name.find('/') == std::string_view::npos &&
         std::none_of(name.begin(), name.end(),
                      [](char c) { return std::iscntrl(static_cast<unsigned char>(c)) != 0; });
}

Annotations::Line parse(const Path& path, std::string_view text, int64_t number) {
  const size_t tab = text.find('\t');
  if (tab == std::string_view::npos) {
    fail_at_line(path, number,
                 fmt::format("no tab between a picture's name and its class: '{}'", shown(text)));
  }
  const std::string_view file = text.substr(0, tab);
  const std::string_view rest = text.substr(tab + 1);
  const std::string_view class_name = rest.substr(0, rest.find('\t'));
  if (!is_plain(file) || !is_picture(Path(file))) {
    fail_at_line(path, number,
                 fmt::format("not the name of a .jpg, .jpeg or .png picture: '{}'", shown(file)));
  }
  if (!is_plain(class_name)) {
    fail_at_line(path, number, fmt::format("not the name of a class: '{}'", shown(class_name)));
  }
  return {std::string(file), std::string(class_name), number};
}

// File names, each with the line that names it, or 0.
using Named = std::unordered_map<std::string, int64_t>;

Named files_in(const Path& folder) {
  Named names;
  std::error_code error;
  for (const base::FolderEntry& entry : base::list_folder(folder, error)) {
    names.emplace(entry.path().filename().string(), 0);
  }
  if (error) fail_folder(folder, error.message());
  return names;
}

void claim(Named& files, const Annotations::Line& line, const Path& path) {
  const auto found = files.find(line.file);
  if (found == files.end()) {
    fail_at_line(path, line.number,
                 fmt::format("there is no picture '{}' in the folder {}", line.file, kAnnotatedPictures));
  }
  if (found->second != 0) {
    fail_at_line(path, line.number,
                 fmt::format("the picture '{}' is in line {} too", line.file, found->second));
  }
  found->second = line.number;
}

// nullopt: the folder has no annotations. ConfigError with file and line: a line without a tab, a
// name that is not a picture's or leads out of the folder, a name that occurs twice, or a missing
// picture.
std::optional<Annotations> read_annotations(const Path& folder) {
  std::error_code ignored;
  Annotations annotations;
  annotations.path = folder / kAnnotationsFile;
  if (!std::filesystem::is_regular_file(annotations.path, ignored)) return std::nullopt;
  Named files = files_in(folder / kAnnotatedPictures);
  const SharedBytes content = read_file(annotations.path);
  std::string_view rest(reinterpret_cast<const char*>(content.bytes.data()), content.bytes.size());
  for (int64_t number = 1; !rest.empty(); ++number) {
    const size_t end = std::min(rest.find('\n'), rest.size());
    std::string_view text = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    if (text.ends_with('\r')) text.remove_suffix(1);
    if (text.empty()) continue;
    annotations.lines.push_back(parse(annotations.path, text, number));
    claim(files, annotations.lines.back(), annotations.path);
  }
  return annotations;
}

// --- class folders ---

// Nested folders may contain links: deep enough for any set, and an end to a cycle of links.
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

// The folders directly in a folder, sorted, without hidden ones.
std::vector<std::string> folders_of(const Path& path) {
  std::vector<std::string> names;
  std::error_code error;
  for (const base::FolderEntry& entry : base::list_folder(path, error)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with('.') && entry.is_folder()) names.push_back(name);
  }
  if (error) fail_folder(path, error.message());
  std::sort(names.begin(), names.end());
  return names;
}

void add_pictures(const Path& folder, const Path& root, int depth, std::vector<Path>& files) {
  std::error_code error;
  for (const base::FolderEntry& entry : base::list_folder(folder, error)) {
    if (entry.is_folder()) {
      if (depth < kMaxDepth) add_pictures(entry.path(), root, depth + 1, files);
    } else if (is_picture(entry.path()) && entry.is_file()) {
      files.push_back(entry.path().lexically_relative(root));
    }
  }
  if (error) fail_folder(folder, error.message());
}

// The pictures of a class, sorted by folder, then by name.
std::vector<Path> pictures_below(const Path& root, const std::string& name) {
  std::vector<Path> files;
  add_pictures(root / name, root, 0, files);
  std::sort(files.begin(), files.end(), [](const Path& a, const Path& b) {
    const std::string folder_a = a.parent_path().string(), folder_b = b.parent_path().string();
    return folder_a != folder_b ? folder_a < folder_b : a.filename().string() < b.filename().string();
  });
  return files;
}

// The folder of a split; empty if there is none.
Path part_folder(const Path& root, Split split) {
  std::error_code ignored;
  for (const char* name : split == Split::kTrain ? std::vector{"train"} : std::vector{"val", "test"}) {
    if (std::filesystem::is_directory(root / name, ignored)) return root / name;
  }
  return {};
}

// The class folders. Empty if none of them has a picture.
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
