#include "checkpoint/store.h"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <lockstep/version.h>
#include <torch/version.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <random>

#include "base/folder.h"
#include "base/log.h"
#include "checkpoint/error.h"

namespace lockstep::checkpoint {
namespace {

constexpr std::string_view kTemporaryPrefix = ".tmp-";
constexpr char kLatestName[] = "latest";
// For the manifest, folders, and a file system that rounds sizes up.
constexpr int64_t kSpareBytes = 1 << 20;

std::string temporary_name(std::string_view what) {
  std::random_device random;
  return fmt::format("{}{}-{:08x}{:08x}", kTemporaryPrefix, what, random(), random());
}

std::string utc_now() {
  return fmt::format("{:%Y-%m-%dT%H:%M:%SZ}",
                     fmt::gmtime(std::chrono::system_clock::to_time_t(std::chrono::system_clock::now())));
}

std::filesystem::path made_folder(std::filesystem::path folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) {
    throw CheckpointError(fmt::format("cannot make the folder '{}': {}", folder.string(), error.message()));
  }
  return folder;
}

StoreOptions checked(StoreOptions options) {
  if (options.rotation.keep_last < 0 || options.rotation.keep_best < 0) {
    throw ConfigError("checkpoint", fmt::format("keep_last and keep_best are 0 or more: {}, {}",
                                                options.rotation.keep_last, options.rotation.keep_best));
  }
  if (options.files == nullptr) options.files = &real_files();
  return options;
}

std::vector<std::string> names_in(const std::filesystem::path& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (const base::FolderEntry& entry : base::list_folder(folder, error)) {
    names.push_back(entry.path().filename().string());
  }
  if (error) {
    throw CheckpointError(fmt::format("cannot read the folder '{}': {}", folder.string(), error.message()));
  }
  return names;
}

Manifest make_manifest(std::vector<ShardIndex> shards, const Snapshot& snapshot) {
  Manifest manifest;
  manifest.step = snapshot.step;
  manifest.epoch = snapshot.epoch;
  manifest.world_size = snapshot.world_size;
  manifest.metric = snapshot.metric;
  manifest.metric_kind = snapshot.metric_kind;
  manifest.best = snapshot.best;
  manifest.time = utc_now();
  manifest.lockstep = kVersion;
  manifest.libtorch = TORCH_VERSION;
  manifest.metadata = snapshot.metadata;
  for (ShardIndex& shard : shards) {
    const int file = static_cast<int>(manifest.files.size());
    manifest.files.push_back(std::move(shard.file));
    for (auto& [name, tensor] : shard.tensors) {
      TensorEntry& entry =
          manifest.tensors.try_emplace(name, TensorEntry{tensor.dtype, tensor.shape, {}}).first->second;
      if (entry.dtype != tensor.dtype || entry.shape != tensor.shape) {
        throw ConfigError("checkpoint",
                          fmt::format("ranks saved '{}' with different dtypes or shapes", name));
      }
      for (Piece& piece : tensor.pieces) {
        piece.file = file;
        entry.pieces.push_back(std::move(piece));
      }
    }
    shard.tensors.clear();
  }
  for (auto& [name, tensor] : manifest.tensors) {
    std::stable_sort(tensor.pieces.begin(), tensor.pieces.end(), [](const Piece& a, const Piece& b) {
      return std::tie(a.first, a.count) < std::tie(b.first, b.count);
    });
  }
  return manifest;
}

}  // namespace

Draft::Draft(Draft&& other) noexcept
    : files_(other.files_), folder_(std::exchange(other.folder_, {})), step_(other.step_) {}

Draft::~Draft() {
  if (folder_.empty()) return;
  try {
    remove_tree(*files_, folder_);
  } catch (const std::exception& error) {
    base::log_warning("checkpoint", "a temporary folder stays until the next run: {}", error.what());
  } catch (...) {  // the file system of a test that simulates a crash
  }
}

Store::Store(std::filesystem::path folder, StoreOptions options)
    : folder_(made_folder(std::move(folder))), options_(checked(options)), lock_(folder_) {
  // Without the lock a temporary folder may belong to a running writer.
  if (lock_.held()) remove_leftovers();
}

void Store::remove_leftovers() {
  for (const std::string& name : names_in(folder_)) {
    const std::filesystem::path path = folder_ / name;
    const std::string hidden = replaced_name("");
    if (name.starts_with(kTemporaryPrefix)) {
      remove_tree(files(), path);
    } else if (name.starts_with(hidden)) {
      const std::filesystem::path place = folder_ / name.substr(hidden.size());
      std::filesystem::exists(place) ? remove_tree(files(), path) : files().rename(path, place);
    } else if (name.starts_with(std::string(kLatestName) + ".") && path.extension() == ".tmp") {
      files().remove_file(path);
    }
  }
}

Entry Store::save(const Snapshot& snapshot) {
  Draft draft = begin(snapshot.step, shard_bytes(snapshot.pieces));
  const ShardIndex index =
      write_shard(files(), draft.folder(), 0, 1, snapshot.pieces, {.sync = options_.sync});
  return publish(std::move(draft), {index}, snapshot);
}

void Store::check_space(int64_t bytes_needed) const {
  const int64_t free = files().free_bytes(folder_);
  if (free - kSpareBytes < bytes_needed) {
    throw CheckpointError(
        fmt::format("no space for a checkpoint in '{}': {} bytes are free, {} are needed. The "
                    "checkpoints before it are as they were",
                    folder_.string(), free, bytes_needed + kSpareBytes));
  }
}

Draft Store::begin(int64_t step, int64_t bytes_needed) {
  if (step < 0) throw ConfigError("checkpoint", fmt::format("a step is 0 or more: {}", step));
  check_space(bytes_needed);
  std::filesystem::path path = folder_ / temporary_name(step_name(step));
  files().make_folder(path);
  return {files(), std::move(path), step};
}

Entry Store::publish(Draft draft, std::vector<ShardIndex> shards, const Snapshot& snapshot) {
  Manifest manifest = make_manifest(std::move(shards), snapshot);
  const std::vector<Entry> before = list();
  for (const Entry& entry : before) manifest.sequence = std::max(manifest.sequence, entry.sequence + 1);
  write_manifest(draft.folder(), manifest);
  const std::string name = step_name(draft.step());
  move_into_place(draft.folder(), name);
  draft.folder_.clear();
  if (options_.sync) files().sync_folder(folder_);
  tidy_up(name);
  return {.path = folder_ / name,
          .step = manifest.step,
          .sequence = manifest.sequence,
          .bytes = manifest.total_bytes(),
          .metric = manifest.metric,
          .metric_kind = manifest.metric_kind,
          .best = manifest.best,
          .time = manifest.time};
}

void Store::write_manifest(const std::filesystem::path& folder, Manifest& manifest) {
  const std::filesystem::path path = folder / kManifestName;
  if (manifest.piece_count() > options_.manifest.whole_pieces) {
    manifest.check_pieces(path);  // the ranks may have saved too few or too many elements
    const std::vector<std::string> texts = manifest.split_off_pieces(options_.manifest.index_pieces);
    for (size_t i = 0; i < texts.size(); ++i) write_text(folder / manifest.indices[i].name, texts[i]);
  }
  const std::string text = manifest.to_text();
  Manifest::parse(text, path);  // checks the pieces if there are no index files, and that it is readable
  write_text(path, text);
  if (options_.sync) files().sync_folder(folder);
}

void Store::write_text(const std::filesystem::path& path, const std::string& text) {
  if (const auto bytes = static_cast<int64_t>(text.size()); bytes > options_.manifest.max_bytes) {
    throw CheckpointError(fmt::format(
        "'{}' would have {} bytes, and more than {} are not read: save fewer tensors, or less metadata",
        path.string(), bytes, options_.manifest.max_bytes));
  }
  const base::UniqueFd fd = files().create(path);
  write_all(files(), fd.get(), text.data(), text.size(), 0, path);
  if (options_.sync) files().sync(fd.get(), path);
}

void Store::move_into_place(const std::filesystem::path& from, const std::string& name) {
  const std::filesystem::path place = folder_ / name;
  if (!std::filesystem::exists(place)) return files().rename(from, place);
  // Two renames: between them list() finds the old checkpoint.
  const std::filesystem::path old = folder_ / replaced_name(name);
  if (std::filesystem::exists(old)) remove_tree(files(), old);
  files().rename(place, old);
  try {
    files().rename(from, place);
  } catch (const Error&) {
    files().rename(old, place);
    throw;
  }
}

// The new checkpoint is saved: an error here is logged and does not end the training.
void Store::tidy_up(const std::string& name) {
  const auto attempt = [&](const std::function<void()>& work) {
    try {
      work();
      return true;
    } catch (const Error& error) {
      base::log_warning("checkpoint", "{} is saved, but: {}", name, error.what());
      return false;
    }
  };
  const bool moved = attempt([&] { publish_file(files(), folder_ / kLatestName, name + "\n"); });
  attempt([&] {
    const std::filesystem::path old = folder_ / replaced_name(name);
    if (std::filesystem::exists(old)) remove_tree(files(), old);
  });
  // `latest` still names an old checkpoint, which stays until the next save.
  if (!moved) return;
  attempt([&] {
    std::vector<std::filesystem::path> paths;
    const std::vector<Entry> entries = list();
    for (const size_t index : to_remove(entries, options_.rotation)) paths.push_back(entries[index].path);
    remove_checkpoints(paths);
  });
}

void Store::remove(int64_t step) {
  const std::filesystem::path path = folder_ / step_name(step);
  const std::vector<Entry> entries = list();
  const auto found =
      std::find_if(entries.begin(), entries.end(), [&](const Entry& e) { return e.path == path; });
  if (found == entries.end()) {
    throw ConfigError("checkpoint", fmt::format("there is no step {} in '{}'", step, folder_.string()));
  }
  const auto valid = std::count_if(entries.begin(), entries.end(), [](const Entry& e) { return e.valid(); });
  if (found->valid() && valid == 1) {
    throw ConfigError("checkpoint", fmt::format("step {} is the only valid checkpoint in '{}' and stays",
                                                step, folder_.string()));
  }
  remove_checkpoints({path});
}

// Renames and syncs first: a reader, also one after a power loss, sees a complete checkpoint or
// none.
void Store::remove_checkpoints(const std::vector<std::filesystem::path>& paths) {
  std::vector<std::filesystem::path> hidden;
  for (const std::filesystem::path& path : paths) {
    hidden.push_back(folder_ / temporary_name("removed-" + path.filename().string()));
    files().rename(path, hidden.back());
  }
  if (options_.sync && !hidden.empty()) files().sync_folder(folder_);
  for (const std::filesystem::path& path : hidden) remove_tree(files(), path);
}

}  // namespace lockstep::checkpoint
