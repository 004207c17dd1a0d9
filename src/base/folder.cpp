#include "base/folder.h"

#include <cerrno>
#include <string_view>

namespace lockstep::base {
namespace {

// Null: failed, and errno has the reason.
DIR* open_folder(const std::filesystem::path& folder) {
  DIR* stream = nullptr;
  do {
    stream = ::opendir(folder.c_str());
  } while (stream == nullptr && errno == EINTR);
  return stream;
}

// Null: the end if errno is 0, else an error.
const dirent* read_entry(DIR* stream) {
  const dirent* entry = nullptr;
  do {
    errno = 0;
    entry = ::readdir(stream);
  } while (entry == nullptr && errno == EINTR);
  return entry;
}

}  // namespace

bool FolderEntry::is_folder() const {
  std::error_code ignored;
  return type_ == DT_LNK || type_ == DT_UNKNOWN ? std::filesystem::is_directory(path_, ignored)
                                                : type_ == DT_DIR;
}

bool FolderEntry::is_file() const {
  std::error_code ignored;
  return type_ == DT_LNK || type_ == DT_UNKNOWN ? std::filesystem::is_regular_file(path_, ignored)
                                                : type_ == DT_REG;
}

bool FolderEntry::is_link() const {
  std::error_code ignored;
  return type_ == DT_UNKNOWN ? std::filesystem::is_symlink(path_, ignored) : type_ == DT_LNK;
}

std::vector<FolderEntry> list_folder(const std::filesystem::path& folder, std::error_code& error) {
  std::vector<FolderEntry> entries;
  const FolderStream stream(open_folder(folder));
  if (stream) {
    while (const dirent* const entry = read_entry(stream.get())) {
      const std::string_view name = entry->d_name;
      if (name != "." && name != "..") entries.emplace_back(folder / name, entry->d_type);
    }
  }
  error.assign(errno, std::generic_category());
  return entries;
}

void remove_tree(const std::filesystem::path& path, std::error_code& error) {
  do {
    std::filesystem::remove_all(path, error);
  } while (error == std::errc::interrupted);
}

}  // namespace lockstep::base
