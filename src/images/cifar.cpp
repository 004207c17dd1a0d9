// CIFAR's two versions, each a folder or a tar archive. Binary: files without a header, with records of
// one or two label bytes and 3 x 32 x 32 pixel bytes (red, green, blue). Python: pickled dicts with a
// NumPy array of these pixel bytes and a list of labels.
#include <archive.h>
#include <archive_entry.h>
#include <fmt/format.h>
#include <lockstep/image_files.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "images/cifar_pickle.h"
#include "images/file_bytes.h"
#include "images/packed_images.h"

namespace lockstep {
namespace images {
namespace {

using Path = std::filesystem::path;

// --- the archive ---

// The most bytes of one file in an archive: several times the largest file of a real set.
constexpr int64_t kMaxEntryBytes = int64_t{256} << 20;
constexpr size_t kReadBytes = 1 << 20;
constexpr size_t kMaxEntries = 10'000;
constexpr int64_t kMaxArchiveBytes = 4 * kMaxEntryBytes;  // unpacked

class TarReader {
 public:
  explicit TarReader(const std::filesystem::path& path)
      : path_(path), file_(map_file(path)), archive_(archive_read_new(), archive_read_free) {
    if (archive_ == nullptr) fail("no memory");
    // Named one by one: "all" includes filters that start programs.
    archive_read_support_filter_bzip2(archive_.get());
    archive_read_support_filter_gzip(archive_.get());
    archive_read_support_filter_xz(archive_.get());
    archive_read_support_filter_zstd(archive_.get());
    archive_read_support_format_tar(archive_.get());
    if (archive_read_open_memory(archive_.get(), file_.bytes.data(), file_.bytes.size()) != ARCHIVE_OK)
      fail_here();
  }

  // False: the end of the archive.
  bool next() {
    const int status = archive_read_next_header(archive_.get(), &entry_);
    if (status == ARCHIVE_EOF) return false;
    if (status != ARCHIVE_OK && status != ARCHIVE_WARN) fail_here();
    if (++entries_ > kMaxEntries || archive_filter_bytes(archive_.get(), 0) > kMaxArchiveBytes) {
      fail("it has more entries or bytes than an image set");
    }
    if (archive_entry_size(entry_) > kMaxEntryBytes || archive_entry_size(entry_) < 0) {
      fail(fmt::format("a file of {} bytes, {} is the most", archive_entry_size(entry_), kMaxEntryBytes));
    }
    return true;
  }

  bool is_file() const { return archive_entry_filetype(entry_) == AE_IFREG; }

  // The name of the entry without its folders.
  std::string name() const {
    const char* whole = archive_entry_pathname(entry_);
    return whole == nullptr ? "" : std::filesystem::path(whole).filename().string();
  }

  // Memory grows with the data, not with the size in the header.
  SharedBytes read() {
    auto data = std::make_shared<std::vector<uint8_t>>();
    const auto size = static_cast<size_t>(archive_entry_size(entry_));
    while (data->size() < size) {
      const size_t done = data->size();
      data->resize(done + std::min(kReadBytes, size - done));
      const la_ssize_t got = archive_read_data(archive_.get(), data->data() + done, data->size() - done);
      if (got <= 0) fail_here();
      data->resize(done + static_cast<size_t>(got));
    }
    const std::span<const uint8_t> bytes(*data);
    return {std::move(data), bytes};
  }

  [[noreturn]] void fail(std::string_view reason) const {
    fail_at(path_, archive_ == nullptr ? 0 : archive_filter_bytes(archive_.get(), -1), reason);
  }

 private:
  [[noreturn]] void fail_here() const {
    const char* text = archive_error_string(archive_.get());
    fail(fmt::format("no tar archive, or cut: {}", text == nullptr ? "it ends too early" : text));
  }

  const std::filesystem::path& path_;
  SharedBytes file_;
  std::unique_ptr<struct archive, int (*)(struct archive*)> archive_;
  struct archive_entry* entry_ = nullptr;
  size_t entries_ = 0;
};

// The files with these names, in any folder of a tar archive, plain or compressed (gzip, xz, bzip2,
// zstd), read into memory. Missing files are left out. ConfigError: not a tar archive, truncated, a
// file that is larger than kMaxEntryBytes, or one that occurs twice before all are found.
std::map<std::string, SharedBytes> read_archive(const Path& path, const std::vector<std::string>& names) {
  std::map<std::string, SharedBytes> found;
  TarReader tar(path);
  // Stop at the last of them: the rest of a large archive takes seconds to unpack.
  while (found.size() < names.size() && tar.next()) {
    const std::string name = tar.name();
    if (!tar.is_file() || std::find(names.begin(), names.end(), name) == names.end()) continue;
    if (found.contains(name)) tar.fail(fmt::format("the file {} is in it twice", name));
    found.emplace(name, tar.read());
  }
  return found;
}

// --- the records ---

constexpr ImageShape kShape{.channels = 3, .height = 32, .width = 32};

struct CifarFormat {
  int64_t label_bytes;
  int64_t label_at;
  int64_t num_classes;
  std::vector<std::string> data_files;  // of the binary version
  std::string names_file;
  // Of the Python version: its files have the same names without ".bin".
  std::string python_names_file;
  std::string labels_key;
  std::string names_key;

  int64_t record_bytes() const { return label_bytes + kShape.bytes(); }
};

struct CifarFile {
  Path path;  // for messages
  SharedBytes memory;
};

void check_name_count(const CifarFile& file, size_t count, int64_t num_classes) {
  if (static_cast<int64_t>(count) == num_classes) return;
  fail_at(file.path, 0, fmt::format("{} names of classes, not {}", count, num_classes));
}

// One name per line; empty lines are skipped.
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
  check_name_count(file, names.size(), num_classes);
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
    if (!check.take(label)) fail_at(file.path, at, check.error_text(label));
    labels.values.push_back(label);
  }
  blocks.push_back({file.memory, format.label_bytes, format.record_bytes(), count});
}

CifarPickle read_pickle(const CifarFile& file, const CifarFormat& format) {
  try {
    return parse_cifar_pickle(file.memory.bytes, format.labels_key, format.names_key);
  } catch (const CifarPickleError& error) {
    fail_at(file.path, static_cast<int64_t>(error.offset), error.what());
  }
}

// The images stay in the mapped file.
void add_pickle(const CifarFile& file, const CifarFormat& format, std::vector<ImageBlock>& blocks,
                ImageLabels& labels) {
  const CifarPickle pickle = read_pickle(file, format);
  if (pickle.row_bytes != kShape.bytes()) {
    fail_at(file.path, 0, fmt::format("an image has {} bytes, not {}", pickle.row_bytes, kShape.bytes()));
  }
  if (static_cast<int64_t>(pickle.labels.size()) != pickle.count) {
    fail_at(file.path, 0,
            fmt::format("'{}' has {} labels for {} images", format.labels_key, pickle.labels.size(),
                        pickle.count));
  }
  LabelCheck check(format.num_classes);
  for (const int64_t label : pickle.labels) {
    if (!check.take(label)) fail_at(file.path, 0, check.error_text(label));
    labels.values.push_back(static_cast<int32_t>(label));
  }
  blocks.push_back({{file.memory.owner, pickle.data}, 0, kShape.bytes(), pickle.count});
}

std::map<std::string, SharedBytes> read_folder(const Path& folder, const std::vector<std::string>& names) {
  std::map<std::string, SharedBytes> files;
  for (const std::string& name : names) {
    if (std::filesystem::exists(folder / name)) files.emplace(name, map_file(folder / name));
  }
  return files;
}

// "train" for "train.bin".
std::string python_name(const std::string& file) { return std::filesystem::path(file).stem().string(); }

ImageSet open_cifar(const Path& path, const CifarFormat& format) {
  const bool is_folder = std::filesystem::is_directory(path);
  // An archive is read once, so its name decides.
  const bool is_python = is_folder ? !std::filesystem::exists(path / format.data_files[0]) &&
                                         std::filesystem::exists(path / python_name(format.data_files[0]))
                                   : path.filename().string().find("python") != std::string::npos;
  std::vector<std::string> wanted;
  for (const std::string& name : format.data_files) wanted.push_back(is_python ? python_name(name) : name);
  const std::vector<std::string> data_files = wanted;
  const std::string& names_file = is_python ? format.python_names_file : format.names_file;
  wanted.push_back(names_file);
  const std::map<std::string, SharedBytes> files =
      is_folder ? read_folder(path, wanted) : read_archive(path, wanted);

  std::vector<ImageBlock> blocks;
  ImageLabels labels;
  labels.num_classes = format.num_classes;
  for (const std::string& name : data_files) {
    const auto found = files.find(name);
    if (found == files.end()) {
      throw ConfigError(
          kComponent, fmt::format("'{}' holds no file {}: is it CIFAR-{}'s {} version?", path.string(), name,
                                  format.label_bytes == 1 ? 10 : 100, is_python ? "Python" : "binary"));
    }
    const CifarFile file{path / name, found->second};
    if (is_python) {
      add_pickle(file, format, blocks, labels);
    } else {
      add_records(file, format, blocks, labels);
    }
  }
  if (const auto found = files.find(names_file); found != files.end()) {
    const CifarFile file{path / names_file, found->second};
    labels.names = is_python ? read_pickle(file, format).names : parse_names(file, format.num_classes);
    check_name_count(file, labels.names.size(), format.num_classes);
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
                             .names_file = "batches.meta.txt",
                             .python_names_file = "batches.meta",
                             .labels_key = "labels",
                             .names_key = "label_names"};
  if (split == Split::kTrain) {
    format.data_files = {"data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin", "data_batch_4.bin",
                         "data_batch_5.bin"};
  }
  return images::open_cifar(path, format);
}

ImageSet open_cifar100(const std::filesystem::path& path, Split split, Cifar100Labels labels) {
  const bool is_fine = labels == Cifar100Labels::kFine;
  return images::open_cifar(path, {.label_bytes = 2,
                                   .label_at = is_fine ? 1 : 0,
                                   .num_classes = is_fine ? 100 : 20,
                                   .data_files = {split == Split::kTrain ? "train.bin" : "test.bin"},
                                   .names_file = is_fine ? "fine_label_names.txt" : "coarse_label_names.txt",
                                   .python_names_file = "meta",
                                   .labels_key = is_fine ? "fine_labels" : "coarse_labels",
                                   .names_key = is_fine ? "fine_label_names" : "coarse_label_names"});
}

}  // namespace lockstep
