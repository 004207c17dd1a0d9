#pragma once

#include <filesystem>
#include <string>

#include "support/golden.h"

namespace lockstep::checkpoint {

// Checkpoints that DeepSpeed wrote: tests/fuzz/make_deepspeed_checkpoints.py.
inline std::filesystem::path corpus() { return test::data_path("fuzz/deepspeed_checkpoint"); }
inline std::filesystem::path corpus(const std::string& name) {
  return test::data_path("fuzz/deepspeed_checkpoint/" + name);
}

// The content of their files `latest`.
inline constexpr char kTag[] = "global_step3";

}  // namespace lockstep::checkpoint
