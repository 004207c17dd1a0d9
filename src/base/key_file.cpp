#include "base/key_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <lockstep/error.h>
#include <pwd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cctype>
#include <cerrno>
#include <cstring>
#include <system_error>

#include "base/atomic_file.h"
#include "base/unique_fd.h"

namespace lockstep::base {
namespace {

constexpr char kOtherWays[] =
    "LOCKSTEP_KEY_DIR names another folder that all nodes share; LOCKSTEP_JOB_TOKEN, the same secret on all "
    "nodes, needs none";

std::filesystem::path home_folder(const Environment& environment) {
  const std::string home = environment.get("HOME").value_or("");
  if (!home.empty()) return home;
  const passwd* user = ::getpwuid(::geteuid());
  return user != nullptr && user->pw_dir != nullptr ? user->pw_dir : "/";
}

std::filesystem::path key_folder(const Environment& environment) {
  const std::string chosen = environment.get("LOCKSTEP_KEY_DIR").value_or("");
  return chosen.empty() ? home_folder(environment) / ".lockstep" / "keys" : std::filesystem::path(chosen);
}

std::string file_name(std::string name) {
  for (char& c : name) {
    if (std::isalnum(static_cast<unsigned char>(c)) == 0 && c != '-' && c != '_' && c != '.') c = '_';
  }
  return name + ".key";
}

}  // namespace

KeyFile::KeyFile(const std::string& name, const Environment& environment)
    : path_(key_folder(environment) / file_name(name)) {}

void KeyFile::publish(const std::string& secret) const {
  try {
    std::error_code error;
    std::filesystem::create_directories(path_.parent_path(), error);
    // A folder that was there keeps its mode: the file is closed to others in any case.
    publish_file(path_, secret + "\n", 0600);
  } catch (const ConfigError& error) {
    throw ConfigError("key", fmt::format("the job's secret cannot be written to a file ({}); {}",
                                         error.what(), kOtherWays));
  }
}

std::optional<std::string> KeyFile::read() const {
  // A network file system keeps the answer that a file is not there for up to a minute,
  // unless the folder is looked at.
  std::error_code ignored;
  const std::filesystem::directory_iterator look(path_.parent_path(), ignored);
  const UniqueFd fd(::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  if (!fd) return std::nullopt;
  struct stat status {};
  if (::fstat(fd.get(), &status) != 0) return std::nullopt;
  if (!S_ISREG(status.st_mode) || status.st_uid != ::geteuid() || (status.st_mode & 0077) != 0) {
    throw ConfigError("key", fmt::format("'{}' is not a file of this user's that is closed to all others, "
                                         "its mode is {:04o}: remove it",
                                         path_.string(), status.st_mode & 07777));
  }
  std::array<char, 64> text;
  const ssize_t count = ::read(fd.get(), text.data(), text.size());
  if (count != static_cast<ssize_t>(text.size())) return std::nullopt;
  return std::string(text.data(), text.size());
}

void KeyFile::remove() const noexcept { ::unlink(path_.c_str()); }

}  // namespace lockstep::base
