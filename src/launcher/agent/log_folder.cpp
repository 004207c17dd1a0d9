#include "launcher/agent/log_folder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <lockstep/error.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <system_error>

#include "base/folder.h"
#include "base/unique_fd.h"

namespace lockstep::launcher {
namespace fs = std::filesystem;
namespace {

[[noreturn]] void fail(const fs::path& path, const std::string& reason) {
  throw ConfigError("run", fmt::format("cannot make the log folder '{}': {}; choose another with --log-dir, "
                                       "or for temporary ones with TMPDIR",
                                       path.string(), reason));
}

fs::path temporary_folder() {
  std::error_code error;
  fs::path path = fs::temp_directory_path(error);
  if (error) fail("$TMPDIR", error.message());
  return path;
}

fs::path make_random(const fs::path& base, const std::string& stem) {
  std::string pattern = (base / (stem + "_XXXXXX")).string();
  if (::mkdtemp(pattern.data()) == nullptr) fail(pattern, std::strerror(errno));
  return pattern;
}

void make(const fs::path& path) {
  std::error_code error;
  fs::create_directories(path, error);
  if (error) fail(path, error.message());
}

// A run id may be any text; a folder's name may not hold '/'.
std::string folder_name(std::string run_id) {
  std::replace(run_id.begin(), run_id.end(), '/', '-');
  return run_id.substr(0, 100);
}

// Of temporary folders. Their launcher holds a lock on them.
constexpr std::string_view kTemporaryStem = "lockstep-run";

// Empty if another process holds the lock or the folder does not exist.
base::UniqueFd lock_folder(const fs::path& path) {
  base::UniqueFd fd(base::retry_interrupted(
      [&] { return ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW); }));
  struct stat status {};
  if (!fd || ::flock(fd.get(), LOCK_EX | LOCK_NB) != 0 || ::fstat(fd.get(), &status) != 0) return {};
  return status.st_uid == ::geteuid() ? std::move(fd) : base::UniqueFd();
}

// The folder gets its name after it is locked, so that no other launcher removes it as stale.
fs::path make_locked(const fs::path& base, base::UniqueFd& lock) {
  const fs::path unnamed = make_random(base, "lockstep-new");
  lock = lock_folder(unnamed);
  std::string name = unnamed.filename().string();
  name.replace(0, name.rfind('_'), kTemporaryStem);
  std::error_code error;
  fs::rename(unnamed, base / name, error);
  if (error) fail(base / name, error.message());
  return base / name;
}

// The kernel releases the lock of a process that ends, for whatever reason.
void remove_stale_folders() {
  std::error_code ignored;
  for (const base::FolderEntry& entry : base::list_folder(temporary_folder(), ignored)) {
    if (!entry.path().filename().string().starts_with(fmt::format("{}_", kTemporaryStem))) continue;
    if (const base::UniqueFd lock = lock_folder(entry.path())) base::remove_tree(entry.path(), ignored);
  }
}

}  // namespace

base::UniqueFd open_log_file(const fs::path& path, int flags) {
  base::UniqueFd fd(base::retry_interrupted(
      [&] { return ::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | flags, 0644); }));
  if (!fd)
    throw ConfigError("run", fmt::format("cannot write '{}': {}", path.string(), std::strerror(errno)));
  return fd;
}

LogFolder::LogFolder(const std::string& base, const std::string& run_id, bool keep) {
  fs::path root = base;
  // With torchrun, /dev/null means that no log files are wanted.
  const bool unwanted = base == "/dev/null";
  if (base.empty() || unwanted) {
    remove_stale_folders();
    if (keep && !unwanted) {
      root = make_random(temporary_folder(), "lockstep");
    } else {
      root = remove_ = make_locked(temporary_folder(), lock_);
    }
  } else {
    make(root);
    root = fs::absolute(root);
  }
  path_ = make_random(root, folder_name(run_id));
}

LogFolder::~LogFolder() {
  std::error_code ignored;
  if (!remove_.empty()) base::remove_tree(remove_, ignored);
}

void LogFolder::make_attempt(int number, int local_world_size) {
  std::error_code ignored;
  base::remove_tree(attempt(number), ignored);
  for (int local_rank = 0; local_rank < local_world_size; ++local_rank) make(worker(number, local_rank));
}

fs::path LogFolder::attempt(int number) const { return path_ / fmt::format("attempt_{}", number); }

fs::path LogFolder::worker(int number, int local_rank) const {
  return attempt(number) / std::to_string(local_rank);
}

}  // namespace lockstep::launcher
