#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "exported/program.h"

namespace lockstep::exported {

// A tensor of the file, under Python's name.
struct Payload {
  std::string name;
  at::Tensor tensor;
  bool is_parameter = false;
  std::string record;      // of the file, which has the memory of the tensor: "data/weights/weight_0"
  bool persistent = true;  // part of Python's state dict
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

// The new content of a record, valid until the next call; nullopt: it stays as it is.
using ReplaceRecord = std::function<std::optional<std::string_view>(const std::string& record)>;
// Copies a .pt2 file record by record. A reader of `to`, which may be the same file, sees all of it or
// nothing. ConfigError: one file cannot be read, or the other not be written.
void copy_archive(const std::filesystem::path& from, const std::filesystem::path& to,
                  const ReplaceRecord& replace);

}  // namespace lockstep::exported
