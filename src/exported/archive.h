#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "exported/program.h"

namespace lockstep::exported {

// A tensor of the file, under Python's name.
struct Payload {
  std::string name;
  at::Tensor tensor;
  bool is_parameter = false;
};

// A .pt2 file in host memory.
struct Archive {
  Program program;
  std::vector<Payload> weights;    // Python's state dict; tied weights are one tensor
  std::vector<Payload> constants;  // tensors and buffers that are not part of the state dict
};

enum class ReadTensors { kYes, kNo };  // kNo: tensors of the right shape on the meta device

// Reads a file of torch.export.save. Executes nothing. ConfigError names the file and what is wrong.
Archive read_archive(const std::filesystem::path& file, ReadTensors tensors = ReadTensors::kYes);

}  // namespace lockstep::exported
