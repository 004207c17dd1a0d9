#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace lockstep::checkpoint {

// Reading side of a folder of checkpoints: takes no lock and changes nothing, so any
// rank and any tool may look while a run writes.

// "step-0000001234".
std::string step_name(int64_t step);
// Where a checkpoint of this name lies while another takes its place.
std::string replaced_name(const std::string& name);

struct Entry {
  std::filesystem::path path;
  int64_t step = 0;
  int64_t sequence = -1;
  int64_t bytes = 0;
  std::optional<double> metric = {};
  bool best = false;  // it was the best when it was saved, by the trainer's criterion
  std::string time = {};
  std::string problem =
      {};  // why it cannot be used; empty: the manifest and the sizes of the files are right

  bool valid() const { return problem.empty(); }
};

// The checkpoints of a folder, newest first, broken ones last. A folder that is not
// there has none.
std::vector<Entry> list(const std::filesystem::path& folder);

enum class Check {
  kStructure,  // manifest and sizes of files: milliseconds
  kChecksums,  // every byte is read
};

// The newest checkpoint that passes the check. Each broken one that is newer is named in
// a warning and skipped.
std::optional<Entry> newest_valid(const std::filesystem::path& folder, Check check = Check::kChecksums);

}  // namespace lockstep::checkpoint
