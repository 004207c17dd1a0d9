#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <string>
#include <vector>

#include "checkpoint/input_file.h"
#include "checkpoint/safetensors.h"

namespace lockstep::checkpoint {

// One safetensors file by itself: a shard, or what Python wrote. It has no checksums.
// Reads may run in several threads. CheckpointError when the file is not what it should
// be, ConfigError for a name that is not there.
class SafetensorsFile {
 public:
  // Reads the header.
  explicit SafetensorsFile(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return file_.path(); }
  const SafetensorsHeader& header() const { return header_; }
  std::vector<std::string> names() const;

  // A new host tensor.
  at::Tensor read(const std::string& name) const;

 private:
  InputFile file_;
  SafetensorsHeader header_;
};

}  // namespace lockstep::checkpoint
