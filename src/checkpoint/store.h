#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <vector>

#include "checkpoint/catalog.h"
#include "checkpoint/file_system.h"
#include "checkpoint/folder_lock.h"
#include "checkpoint/rotation.h"
#include "checkpoint/shard.h"
#include "checkpoint/snapshot.h"

namespace lockstep::checkpoint {

struct StoreOptions {
  RotationRule rotation;
  bool sync = true;  // fsync before publishing; without it a power loss may take what is new
  ManifestLimits manifest = {};
  // Must outlive the store. nullptr: the machine's own.
  FileSystem* files = nullptr;
};

// A save that is not published yet: a temporary folder, removed with it unless it was
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
  std::filesystem::path folder_;  // empty: published or given away
  int64_t step_;
};

// The one writer of a folder of checkpoints, on rank 0 of a job. Not thread-safe: one
// thread at a time. Reading needs no store: see catalog.h and reader.h.
//
// At every moment, also when the process or the machine dies, the folder holds the
// checkpoints that were published; a save that fails throws CheckpointError, leaves them
// as they were and removes what it had written.
class Store {
 public:
  // Makes the folder, locks it for the life of the store and removes what dead writers
  // left. ConfigError names the process that holds the lock.
  explicit Store(std::filesystem::path folder, StoreOptions options = {});
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;

  const std::filesystem::path& folder() const { return folder_; }

  // Everything by one rank: begin, write_shard, publish. Blocks until it is on disk.
  // Free space is checked first. A step that is there already is replaced.
  Entry save(const Snapshot& snapshot);

  // The same in parts, for several ranks: begin on rank 0, write_shard of each rank into
  // draft.folder(), publish on rank 0 with the indices of all. `bytes_needed` of all
  // ranks is compared with the free space. `snapshot.pieces` is not used by publish.
  Draft begin(int64_t step, int64_t bytes_needed);
  Entry publish(Draft draft, std::vector<ShardIndex> shards, const Snapshot& snapshot);

  std::vector<Entry> list() const { return checkpoint::list(folder_); }
  std::optional<Entry> newest_valid(Check check = Check::kChecksums) const {
    return checkpoint::newest_valid(folder_, check);
  }
  // Refuses, with ConfigError, to remove the only valid one.
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
