#pragma once

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <functional>
#include <list>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/error.h"
#include "checkpoint/file_system.h"
#include "unit/checkpoint/folder.h"

namespace lockstep::checkpoint {

// The process died. Not a std::exception: only the test may catch it.
struct Crash {};

// The real file system with a fault at one call. Counts the calls.
class FaultyFiles : public FileSystem {
 public:
  enum class Fault {
    kNone,
    kDies,       // this call and all after it do nothing, as after the death of the process
    kHalfDies,   // the same, but a write writes half of its bytes first
    kPowerLoss,  // kDies, and everything that was not synced is lost: bytes of files, names in folders
    kExits,      // the process really ends, with status 0
    kFails,      // this call fails once, with `error`
  };

  explicit FaultyFiles(Fault fault = Fault::kNone, int at_call = 0, int error = EIO)
      : fault_(fault), at_call_(at_call), error_(error) {}

  int calls() const { return calls_; }
  bool short_writes = false;
  int64_t pretended_free_bytes = -1;

  // The fault that comes after the last call: between two saves.
  void end() {
    if (++calls_ == at_call_) strike();
  }

  base::UniqueFd create(const std::filesystem::path& path) override {
    enter(path);
    base::UniqueFd fd = FileSystem::create(path);
    if (fault_ == Fault::kPowerLoss) unsynced_.emplace_back(::dup(fd.get()), path);
    return fd;
  }
  bool allocate(int fd, int64_t bytes, const std::filesystem::path& path) override {
    enter(path);
    return FileSystem::allocate(fd, bytes, path);
  }
  size_t write(int fd, const void* data, size_t bytes, int64_t offset,
               const std::filesystem::path& path) override {
    const size_t some = bytes > 1 ? bytes / 2 : bytes;
    if (calls_ + 1 == at_call_ && fault_ == Fault::kHalfDies) FileSystem::write(fd, data, some, offset, path);
    enter(path);
    return FileSystem::write(fd, data, short_writes ? some : bytes, offset, path);
  }
  void start_writing_back(int fd, int64_t offset, int64_t bytes) override {
    if (fault_ != Fault::kFails) enter("");  // it has no way to fail
    FileSystem::start_writing_back(fd, offset, bytes);
  }
  void sync(int fd, const std::filesystem::path& path) override {
    enter(path);
    FileSystem::sync(fd, path);
    unsynced_.remove_if([&](const auto& file) { return file.second == path; });
  }
  void sync_folder(const std::filesystem::path& path) override {
    enter(path);
    FileSystem::sync_folder(path);
    std::erase_if(renames_, [&](const Rename& rename) { return rename.from.parent_path() == path; });
  }
  void make_folder(const std::filesystem::path& path) override {
    enter(path);
    FileSystem::make_folder(path);
  }
  void rename(const std::filesystem::path& from, const std::filesystem::path& to) override {
    enter(to);
    std::optional<std::string> replaced;
    if (std::filesystem::is_regular_file(to)) replaced = read_text(to);
    FileSystem::rename(from, to);
    renames_.push_back({from, to, std::move(replaced)});
  }
  void remove_file(const std::filesystem::path& path) override {
    enter(path);
    FileSystem::remove_file(path);
  }
  void remove_folder(const std::filesystem::path& path) override {
    enter(path);
    FileSystem::remove_folder(path);
  }
  int64_t free_bytes(const std::filesystem::path& folder) override {
    enter(folder);
    return pretended_free_bytes >= 0 ? pretended_free_bytes : FileSystem::free_bytes(folder);
  }

 private:
  struct Rename {
    std::filesystem::path from;
    std::filesystem::path to;
    std::optional<std::string> replaced;  // what a file at `to` held
  };

  void enter(const std::filesystem::path& path) {
    if (dead_) throw Crash();
    if (++calls_ != at_call_) return;
    if (fault_ == Fault::kFails) {
      throw CheckpointError("cannot use '" + path.string() + "': " + std::strerror(error_));
    }
    strike();
  }

  void strike() {
    if (fault_ == Fault::kNone || fault_ == Fault::kFails) return;
    if (fault_ == Fault::kExits) ::_exit(0);
    dead_ = true;
    if (fault_ == Fault::kPowerLoss) lose_power();
    throw Crash();
  }

  void lose_power() {
    for (const auto& [fd, path] : unsynced_) {
      if (::ftruncate(fd.get(), 0) != 0) throw std::runtime_error("ftruncate");
    }
    while (!renames_.empty()) {
      const Rename undone = renames_.back();
      renames_.pop_back();
      if (std::filesystem::exists(undone.to)) std::filesystem::rename(undone.to, undone.from);
      if (undone.replaced) write_text(undone.to, *undone.replaced);
    }
  }

  const Fault fault_;
  const int at_call_;
  const int error_;
  int calls_ = 0;
  bool dead_ = false;
  std::list<std::pair<base::UniqueFd, std::filesystem::path>> unsynced_;
  std::vector<Rename> renames_;
};

}  // namespace lockstep::checkpoint
