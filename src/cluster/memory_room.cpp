#include "cluster/memory_room.h"

#include <fmt/format.h>
#include <lockstep/error.h>
#include <sys/resource.h>

#include <algorithm>
#include <fstream>
#include <sstream>

#include "base/size_text.h"

namespace lockstep::cluster {

namespace {

// "no limit" of version 1 is the largest multiple of a page.
constexpr int64_t kNoLimit = int64_t{1} << 60;

std::optional<int64_t> read_number(const std::string& file) {
  std::ifstream stream(file);
  int64_t number = 0;
  if (!(stream >> number)) return std::nullopt;  // "max" of version 2
  return number;
}

// The number after this word at the beginning of a line.
std::optional<int64_t> read_field(const std::string& file, const std::string& name) {
  std::ifstream stream(file);
  for (std::string line; std::getline(stream, line);) {
    std::istringstream words(line);
    std::string word;
    int64_t number = 0;
    if (words >> word >> number && word == name) return number;
  }
  return std::nullopt;
}

struct GroupFiles {
  const char* limit;
  const char* usage;
  const char* reclaimable;  // a field of memory.stat
};
constexpr GroupFiles kVersion1{"memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"};
constexpr GroupFiles kVersion2{"memory.max", "memory.current", "inactive_file"};

std::optional<MemoryRoom> smaller(std::optional<MemoryRoom> a, std::optional<MemoryRoom> b) {
  if (!a || !b) return a ? a : b;
  return a->bytes <= b->bytes ? a : b;
}

std::optional<MemoryRoom> room_in(const std::string& folder, const GroupFiles& files) {
  const auto limit = read_number(folder + "/" + files.limit);
  const auto usage = read_number(folder + "/" + files.usage);
  if (!limit || !usage || *limit >= kNoLimit) return std::nullopt;
  const int64_t cached = read_field(folder + "/memory.stat", files.reclaimable).value_or(0);
  return MemoryRoom{std::max<int64_t>(0, *limit - *usage + cached), *limit, "the control group " + folder,
                    true};
}

std::optional<MemoryRoom> least_room(const std::string& root, const std::string& path,
                                     const GroupFiles& files) {
  std::optional<MemoryRoom> least;
  for (const std::string& folder : folders_up_to_root(root, path)) {
    least = smaller(least, room_in(folder, files));
  }
  return least;
}

std::optional<MemoryRoom> room_of(int resource, const char* name, const char* usage_field) {
  rlimit limit{};
  if (::getrlimit(static_cast<__rlimit_resource>(resource), &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) {
    return std::nullopt;
  }
  const auto used_kib = read_field("/proc/self/status", usage_field);
  if (!used_kib) return std::nullopt;
  const auto bytes = static_cast<int64_t>(std::min<rlim_t>(limit.rlim_cur, kNoLimit));
  return MemoryRoom{std::max<int64_t>(0, bytes - *used_kib * 1024), bytes, name, false};
}

}  // namespace

std::optional<MemoryRoom> process_memory_room() {
  return smaller(room_of(RLIMIT_AS, "RLIMIT_AS", "VmSize:"), room_of(RLIMIT_DATA, "RLIMIT_DATA", "VmData:"));
}

std::optional<MemoryRoom> group_memory_room(const CgroupPaths& paths) {
  std::optional<MemoryRoom> least;
  for (const auto& [controllers, path] : control_groups(paths)) {
    if (controllers.empty()) least = smaller(least, least_room(paths.root, path, kVersion2));
    if (controllers == "memory") least = smaller(least, least_room(paths.root + "/memory", path, kVersion1));
  }
  return least;
}

std::optional<MemoryRoom> host_memory_room() {
  const auto free_kib = read_field("/proc/meminfo", "MemAvailable:");
  const auto total_kib = read_field("/proc/meminfo", "MemTotal:");
  if (!free_kib || !total_kib) return std::nullopt;
  return MemoryRoom{*free_kib * 1024, *total_kib * 1024, "this host", true};
}

void require_memory_for(int ranks) {
  const int64_t each = std::max<int64_t>(1, read_field("/proc/self/status", "RssAnon:").value_or(0) * 1024);
  for (const auto& room : {host_memory_room(), group_memory_room()}) {
    if (!room || room->bytes / each >= ranks) continue;
    throw ConfigError("cluster",
                      fmt::format("{} ranks on this host need {} of memory at least, {} each, and {} has {} "
                                  "left: start fewer (nprocs), or use more nodes",
                                  ranks, base::size_text(each * ranks), base::size_text(each), room->limit,
                                  base::size_text(room->bytes)));
  }
}

}  // namespace lockstep::cluster
