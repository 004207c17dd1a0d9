#include <arpa/inet.h>
#include <fmt/format.h>
#include <lockstep/error.h>

#include <algorithm>
#include <system_error>

#include "track/mlflow.h"

namespace lockstep::track {
namespace {

namespace fs = std::filesystem;

constexpr const char* kFolderName = "artifacts";

bool leads_up(const fs::path& path) { return std::find(path.begin(), path.end(), "..") != path.end(); }

// "http://me:secret@host:5000/path": "host"; of an IPv6 address what is between the brackets.
std::string host_of(const std::string& uri) {
  const size_t begin = uri.find("://") + 3;
  std::string host = uri.substr(begin, uri.find_first_of("/?#", begin) - begin);
  host.erase(0, host.rfind('@') + 1);
  if (host.starts_with('[')) return host.substr(1, host.find(']') - 1);
  return host.substr(0, host.find(':'));
}

}  // namespace

bool is_on_this_machine(const std::string& tracking_uri) {
  const std::string host = host_of(tracking_uri);
  if (host == "localhost") return true;
  in_addr four{};
  if (::inet_pton(AF_INET, host.c_str(), &four) == 1) return ntohl(four.s_addr) >> 24 == 127;
  in6_addr six{};
  return ::inet_pton(AF_INET6, host.c_str(), &six) == 1 && IN6_IS_ADDR_LOOPBACK(&six);
}

fs::path place_in_run_folder(const fs::path& folder, const std::string& run_id, const std::string& name) {
  const fs::path run_folder = folder.parent_path();
  if (!folder.is_absolute() || leads_up(folder) || folder.filename() != kFolderName ||
      run_folder.filename() != run_id) {
    throw ConfigError("track",
                      fmt::format("the server keeps files of the run in a folder that does not end in "
                                  "'{}/{}' as MLflow's do, nothing is written there: '{}'",
                                  run_id, kFolderName, folder.string()));
  }
  check_artifact_name(name);
  const fs::path below = fs::path(run_id) / kFolderName / fs::path(name).relative_path();
  fs::path place = run_folder.parent_path() / below;
  std::error_code error;
  const fs::path parent = fs::weakly_canonical(run_folder.parent_path(), error);
  const fs::path target = error ? fs::path() : fs::weakly_canonical(place, error);
  // The last one by itself: a link to nothing is not followed above, but when a file is written.
  std::error_code ignored;
  if (error || target != (parent / below).lexically_normal() || fs::is_symlink(place, ignored)) {
    throw ConfigError("track", fmt::format("a link leads out of the folder for files of the run, nothing is "
                                           "written there: '{}'",
                                           place.string()));
  }
  return place;
}

void check_artifact_name(const std::string& name) {
  if (!leads_up(name)) return;
  throw ConfigError("track",
                    fmt::format("the name of a file of the run must not have '..' in its path: '{}'", name));
}

}  // namespace lockstep::track
