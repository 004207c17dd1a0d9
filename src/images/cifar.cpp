// CIFAR's binary version: records of one or two label bytes and 3 x 32 x 32 pixel bytes,
// red, green, blue, one after the other without a header.
#include <fmt/format.h>
#include <lockstep/image_files.h>

#include <map>

#include "images/archive.h"
#include "images/file_error.h"
#include "images/label_check.h"
#include "images/packed_images.h"

namespace lockstep {
namespace images {
namespace {

using Path = std::filesystem::path;

constexpr ImageShape kShape{.channels = 3, .height = 32, .width = 32};

struct CifarFormat {
  int64_t label_bytes;
  int64_t label_at;
  int64_t num_classes;
  std::vector<std::string> data_files;
  std::string names_file;

  int64_t record_bytes() const { return label_bytes + kShape.bytes(); }
};

struct CifarFile {
  Path path;  // for messages
  SharedBytes memory;
};

// One name a line; empty lines are none. The file need not be there.
std::vector<std::string> parse_names(const CifarFile& file, int64_t num_classes) {
  std::vector<std::string> names;
  std::string line;
  for (const uint8_t byte : file.memory.bytes) {
    if (byte != '\n' && byte != '\r') {
      line += static_cast<char>(byte);
    } else if (!line.empty()) {
      names.push_back(std::move(line));
      line.clear();
    }
  }
  if (!line.empty()) names.push_back(std::move(line));
  if (static_cast<int64_t>(names.size()) != num_classes) {
    fail_at(file.path, 0, fmt::format("{} names of classes, not {}", names.size(), num_classes));
  }
  return names;
}

void add_records(const CifarFile& file, const CifarFormat& format, std::vector<ImageBlock>& blocks,
                 ImageLabels& labels) {
  const auto size = static_cast<int64_t>(file.memory.bytes.size());
  const int64_t count = size / format.record_bytes();
  if (count == 0 || size % format.record_bytes() != 0) {
    fail_at(file.path, count * format.record_bytes(),
            fmt::format("the file ends after {} bytes, within a record of {}", size, format.record_bytes()));
  }
  LabelCheck check(format.num_classes);
  for (int64_t i = 0; i < count; ++i) {
    const int64_t at = i * format.record_bytes() + format.label_at;
    const uint8_t label = file.memory.bytes[static_cast<size_t>(at)];
    if (!check.take(label)) fail_at(file.path, at, check.complaint(label));
    labels.values.push_back(label);
  }
  blocks.push_back({file.memory, format.label_bytes, format.record_bytes(), count});
}

std::map<std::string, SharedBytes> read_folder(const Path& folder, const std::vector<std::string>& names) {
  std::map<std::string, SharedBytes> files;
  for (const std::string& name : names) {
    if (std::filesystem::exists(folder / name)) files.emplace(name, map_file(folder / name));
  }
  return files;
}

ImageSet open_cifar(const Path& path, const CifarFormat& format) {
  std::vector<std::string> wanted = format.data_files;
  wanted.push_back(format.names_file);
  const std::map<std::string, SharedBytes> files =
      std::filesystem::is_directory(path) ? read_folder(path, wanted) : read_archive(path, wanted);

  std::vector<ImageBlock> blocks;
  ImageLabels labels;
  labels.num_classes = format.num_classes;
  for (const std::string& name : format.data_files) {
    const auto found = files.find(name);
    if (found == files.end()) {
      throw ConfigError(kComponent, fmt::format("'{}' holds no file {}: is it CIFAR-{}'s binary version?",
                                                path.string(), name, format.label_bytes == 1 ? 10 : 100));
    }
    add_records({path / name, found->second}, format, blocks, labels);
  }
  if (const auto found = files.find(format.names_file); found != files.end()) {
    labels.names = parse_names({path / format.names_file, found->second}, format.num_classes);
  }
  return std::make_shared<PackedImages>(kShape, std::move(blocks), std::move(labels));
}

}  // namespace
}  // namespace images

ImageSet open_cifar10(const std::filesystem::path& path, Split split) {
  images::CifarFormat format{.label_bytes = 1,
                             .label_at = 0,
                             .num_classes = 10,
                             .data_files = {"test_batch.bin"},
                             .names_file = "batches.meta.txt"};
  if (split == Split::kTrain) {
    format.data_files = {"data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin", "data_batch_4.bin",
                         "data_batch_5.bin"};
  }
  return images::open_cifar(path, format);
}

ImageSet open_cifar100(const std::filesystem::path& path, Split split, Cifar100Labels labels) {
  const bool is_fine = labels == Cifar100Labels::kFine;
  return images::open_cifar(path,
                            {.label_bytes = 2,
                             .label_at = is_fine ? 1 : 0,
                             .num_classes = is_fine ? 100 : 20,
                             .data_files = {split == Split::kTrain ? "train.bin" : "test.bin"},
                             .names_file = is_fine ? "fine_label_names.txt" : "coarse_label_names.txt"});
}

}  // namespace lockstep
