#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace lockstep::interop {

// The files of one checkpoint of DeepSpeed's, by ranks.
struct DeepSpeedFiles {
  std::filesystem::path folder;
  // "mp_rank_00_model_states.pt" alone, or at stage 3 one file of each rank.
  std::vector<std::filesystem::path> model;
  // One of each rank; none where nothing is divided.
  std::vector<std::filesystem::path> optimizer;
};

// Whether this looks like a folder that DeepSpeed's save_checkpoint was given, or one of
// the checkpoints in it.
bool is_deepspeed_folder(const std::filesystem::path& path);

// `path`: what save_checkpoint was given, or a checkpoint in it. `tag`: which checkpoint;
// empty: the one that the file `latest` names. ConfigError says what is missing, or which
// file belongs to a kind of training that is not read here (model parallel, pipeline,
// mixture of experts). No file is opened but `latest`.
DeepSpeedFiles find_deepspeed_files(const std::filesystem::path& path, const std::string& tag);

}  // namespace lockstep::interop
