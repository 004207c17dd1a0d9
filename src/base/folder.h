#pragma once

#include <dirent.h>

#include <filesystem>
#include <memory>
#include <system_error>
#include <vector>

namespace lockstep::base {

// Listing and removing folders. Signals can interrupt these calls on network and FUSE file systems. The
// iterators of the standard library then fail; the functions here repeat the calls.

// A stream of opendir(3), which is closed with the pointer.
struct CloseFolder {
  void operator()(DIR* stream) const { ::closedir(stream); }
};
using FolderStream = std::unique_ptr<DIR, CloseFolder>;

class FolderEntry {
 public:
  // type: d_type of dirent, with which most entries need no stat(2).
  FolderEntry(std::filesystem::path path, unsigned char type) : path_(std::move(path)), type_(type) {}

  const std::filesystem::path& path() const { return path_; }
  // A link counts as what it points to; a dangling link is neither a folder nor a file.
  bool is_folder() const;
  bool is_file() const;
  bool is_link() const;

 private:
  std::filesystem::path path_;
  unsigned char type_;
};

// All entries except "." and "..", in no particular order; their paths begin with `folder`. After an
// error, the entries that were read before it.
std::vector<FolderEntry> list_folder(const std::filesystem::path& folder, std::error_code& error);

// Removes a file, or a folder with its content. Links are removed, not followed. A missing path is not an
// error.
void remove_tree(const std::filesystem::path& path, std::error_code& error);

}  // namespace lockstep::base
