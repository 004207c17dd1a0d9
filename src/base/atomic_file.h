#pragma once

#include <sys/types.h>

#include <filesystem>
#include <functional>
#include <string_view>

namespace lockstep::base {

// Publishes a file so that a reader sees the old content or all of the new one,
// never a part, also after a crash: written beside the target, synced, renamed.
// Throws ConfigError with the path and the reason (full disk, no permission); the
// old file then stays as it was. mode: who may read and write a file that is new, less
// what the process's umask takes away.
void publish_file(const std::filesystem::path& path, std::string_view content, mode_t mode = 0644);

// The same for content that comes in parts: `write` hands them to its argument, in
// order. When it throws, the old file stays too.
using Append = std::function<void(std::string_view part)>;
void publish_file(const std::filesystem::path& path, const std::function<void(const Append&)>& write,
                  mode_t mode = 0644);

}  // namespace lockstep::base
