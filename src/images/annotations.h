#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace lockstep::images {

// Which class each picture of a folder is of, as Tiny ImageNet tells it of its validation
// part: val_annotations.txt beside the folder `images`, with lines of a file's name, a class
// and what else there is, tabs between them.
struct Annotations {
  struct Line {
    std::string file;
    std::string class_name;
    int64_t number = 0;  // in the file, from 1
  };

  std::filesystem::path path;
  std::vector<Line> lines;  // in the file's order

  // Sorted, each once.
  std::vector<std::string> classes() const;
};

// Nothing where the folder has no such file. ConfigError names file and line: a line without
// a tab, a name that is no picture's or leads out of the folder, one that is there twice or
// whose picture is missing.
std::optional<Annotations> read_annotations(const std::filesystem::path& folder);

// Where the pictures are, below the folder.
inline constexpr char kAnnotatedPictures[] = "images";

// Whether a file's name is one of a picture that can be decoded.
bool is_picture(const std::filesystem::path& path);

}  // namespace lockstep::images
