#include "images/annotations.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <string_view>
#include <unordered_map>

#include "images/file_error.h"
#include "images/shared_bytes.h"

namespace lockstep::images {
namespace {

using Path = std::filesystem::path;

constexpr char kFile[] = "val_annotations.txt";
// What a file system allows.
constexpr size_t kMaxName = 255;

// A name as a message shows it: hostile bytes are not for a terminal.
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

// Names of files, each with the line that has named it, or 0.
using Named = std::unordered_map<std::string, int64_t>;

Named files_in(const Path& folder) {
  Named names;
  std::error_code error;
  for (std::filesystem::directory_iterator next(folder, error), end; !error && next != end;
       next.increment(error)) {
    names.emplace(next->path().filename().string(), 0);
  }
  if (error) {
    throw ConfigError(kComponent,
                      fmt::format("cannot read the folder '{}': {}", folder.string(), error.message()));
  }
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

}  // namespace

bool is_picture(const Path& path) {
  std::string suffix = path.extension().string();
  std::transform(suffix.begin(), suffix.end(), suffix.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return suffix == ".jpg" || suffix == ".jpeg" || suffix == ".png";
}

std::vector<std::string> Annotations::classes() const {
  std::vector<std::string> names;
  for (const Line& line : lines) names.push_back(line.class_name);
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  return names;
}

std::optional<Annotations> read_annotations(const Path& folder) {
  std::error_code ignored;
  Annotations annotations;
  annotations.path = folder / kFile;
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

}  // namespace lockstep::images
