#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <vector>

#include "checkpoint/catalog.h"
#include "checkpoint/file_system.h"
#include "checkpoint/shard.h"
#include "checkpoint/snapshot.h"

namespace lockstep::checkpoint {

struct StoreOptions {
  RotationRule rotation;
  bool sync = true;  // fsync before publishing; without it a power loss may lose the new checkpoint
  ManifestLimits manifest = {};
  // Must outlive the store. nullptr: real_files().
  FileSystem* files = nullptr;
};

// A save that is not published yet: a temporary folder, which the destructor removes unless it was
// published. Other ranks write their shards into folder().
class Draft {
 public:
  Draft(FileSystem& files, std::filesystem::path folder, int64_t step)
      : files_(&files), folder_(std::move(folder)), step_(step) {}
  Draft(Draft&& other) noexcept;
  Draft& operator=(Draft&&) = delete;
  ~Draft();

  const std::filesystem::path& folder() const { return folder_; }
  int64_t step() const { return step_; }

 private:
  friend class Store;
  FileSystem* files_;
  std::filesystem::path folder_;  // empty: published or moved from
  int64_t step_;
};

// The only writer of a folder of checkpoints, on rank 0 of a job. Not thread-safe: one thread at a
// time. Reading needs no store: see catalog.h and reader.h.
//
// The folder always has all published checkpoints, even after a crash of the process or the machine.
// A save that fails throws CheckpointError, does not change them and removes its own files.
class Store {
 public:
  // Creates the folder, locks it while the store exists and removes files of writers that died.
  // ConfigError: another process holds the lock, and the text names it.
  explicit Store(std::filesystem::path folder, StoreOptions options = {});
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;

  const std::filesystem::path& folder() const { return folder_; }

  // A save by one rank: begin, write_shard, publish. Blocks until it is on disk. Checks the free space
  // first. Replaces a checkpoint of the same step.
  Entry save(const Snapshot& snapshot);

  // A save by several ranks: rank 0 calls begin, each rank write_shard into draft.folder(), rank 0
  // publish with the indices of all. `bytes_needed`: of all ranks, compared with the free space.
  // publish does not use `snapshot.pieces`.
  Draft begin(int64_t step, int64_t bytes_needed);
  Entry publish(Draft draft, std::vector<ShardIndex> shards, const Snapshot& snapshot);

  std::vector<Entry> list() const { return checkpoint::list(folder_); }
  std::optional<Entry> newest_valid(Check check = Check::kChecksums) const {
    return checkpoint::newest_valid(folder_, check);
  }
  // ConfigError: no such step, or it is the only valid checkpoint.
  void remove(int64_t step);

 private:
  FileSystem& files() const { return *options_.files; }
  void check_space(int64_t bytes_needed) const;
  void remove_leftovers();
  void write_manifest(const std::filesystem::path& folder, Manifest& manifest);
  void write_text(const std::filesystem::path& path, const std::string& text);
  void move_into_place(const std::filesystem::path& from, const std::string& name);
  void tidy_up(const std::string& name);
  void remove_checkpoints(const std::vector<std::filesystem::path>& paths);

  const std::filesystem::path folder_;
  const StoreOptions options_;
  const FolderLock lock_;
};

}  // namespace lockstep::checkpoint
