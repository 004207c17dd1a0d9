#include <fmt/format.h>
#include <lockstep/error.h>

#include <filesystem>
#include <functional>
#include <string>

#include "checkpoint/catalog.h"
#include "checkpoint/reader.h"
#include "checkpoint/weights.h"
#include "cli/commands.h"
#include "cli/text.h"

namespace lockstep::cli::ckpt {
namespace {

struct VerifyOptions {
  std::string path;  // a checkpoint, all checkpoints of a run, or a file
};

// Says what became of it.
bool is_whole(const std::filesystem::path& path, const std::function<int64_t()>& read) {
  try {
    fmt::print("ok      {}  {}\n", path.string(), size_text(read()));
    return true;
  } catch (const Error& error) {
    fmt::print("BROKEN  {}  {}\n", path.string(), error.what());
    return false;
  }
}

bool checkpoint_is_whole(const std::filesystem::path& path) {
  return is_whole(path, [&] {
    const checkpoint::Reader reader(path);
    reader.verify();
    return reader.manifest().total_bytes();
  });
}

bool run_is_whole(const std::filesystem::path& run) {
  const std::filesystem::path folder = checkpoint::checkpoints_folder(run);
  const std::vector<checkpoint::Entry> entries = checkpoint::list(folder);
  if (entries.empty()) {
    throw ConfigError("ckpt", fmt::format("there are no checkpoints in '{}'", folder.string()));
  }
  bool whole = true;
  for (const checkpoint::Entry& entry : entries) whole = checkpoint_is_whole(entry.path) && whole;
  return whole;
}

int verify(const VerifyOptions& options) {
  const std::filesystem::path path = options.path;
  if (!std::filesystem::exists(path)) {
    throw ConfigError("ckpt", fmt::format("there is no checkpoint or file '{}'", options.path));
  }
  bool whole = true;
  if (checkpoint::is_checkpoint(path)) {
    whole = checkpoint_is_whole(path);
  } else if (std::filesystem::is_directory(path)) {
    whole = run_is_whole(path);
  } else {  // has no checksums: what can be read is right
    whole = is_whole(path, [&] {
      checkpoint::read_weights(path);
      return static_cast<int64_t>(std::filesystem::file_size(path));
    });
  }
  return whole ? kExitSuccess : kExitFailure;
}

}  // namespace
}  // namespace lockstep::cli::ckpt

namespace lockstep::cli {

int run_ckpt_verify(int argc, const char* const* argv) {
  ckpt::VerifyOptions options;
  config::OptionTable("Compares every byte with the checksums; status 1: broken.", config::kNoVariables)
      .add_argument("PATH", options.path, "checkpoint, run (all of its checkpoints) or file",
                    {.required = true})
      .parse(argc, argv);
  return ckpt::verify(options);
}

}  // namespace lockstep::cli
