#include "images/archive.h"

#include <archive.h>
#include <archive_entry.h>
#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "images/file_error.h"

namespace lockstep::images {
namespace {

constexpr size_t kReadBytes = 1 << 20;
constexpr size_t kMaxEntries = 10'000;
constexpr int64_t kMaxArchiveBytes = 4 * kMaxEntryBytes;  // unpacked

class TarReader {
 public:
  explicit TarReader(const std::filesystem::path& path)
      : path_(path), file_(map_file(path)), archive_(archive_read_new(), archive_read_free) {
    if (archive_ == nullptr) fail("no memory");
    // By name: "all" has filters that start programs.
    archive_read_support_filter_bzip2(archive_.get());
    archive_read_support_filter_gzip(archive_.get());
    archive_read_support_filter_xz(archive_.get());
    archive_read_support_filter_zstd(archive_.get());
    archive_read_support_format_tar(archive_.get());
    if (archive_read_open_memory(archive_.get(), file_.bytes.data(), file_.bytes.size()) != ARCHIVE_OK)
      fail_here();
  }

  // false at the end.
  bool next() {
    const int status = archive_read_next_header(archive_.get(), &entry_);
    if (status == ARCHIVE_EOF) return false;
    if (status != ARCHIVE_OK && status != ARCHIVE_WARN) fail_here();
    if (++entries_ > kMaxEntries || archive_filter_bytes(archive_.get(), 0) > kMaxArchiveBytes) {
      fail("more in it than an image set has");
    }
    if (archive_entry_size(entry_) > kMaxEntryBytes || archive_entry_size(entry_) < 0) {
      fail(fmt::format("a file of {} bytes, {} is the most", archive_entry_size(entry_), kMaxEntryBytes));
    }
    return true;
  }

  bool is_file() const { return archive_entry_filetype(entry_) == AE_IFREG; }

  // Of the entry, without its folders.
  std::string name() const {
    const char* whole = archive_entry_pathname(entry_);
    return whole == nullptr ? "" : std::filesystem::path(whole).filename().string();
  }

  // As much memory as there is data, however large the entry says it is.
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

}  // namespace

std::map<std::string, SharedBytes> read_archive(const std::filesystem::path& path,
                                                const std::vector<std::string>& names) {
  std::map<std::string, SharedBytes> found;
  TarReader tar(path);
  // The rest of a large archive takes seconds to unpack: it ends with the last of them.
  while (found.size() < names.size() && tar.next()) {
    const std::string name = tar.name();
    if (!tar.is_file() || std::find(names.begin(), names.end(), name) == names.end()) continue;
    if (found.contains(name)) tar.fail(fmt::format("the file {} is in it twice", name));
    found.emplace(name, tar.read());
  }
  return found;
}

}  // namespace lockstep::images
