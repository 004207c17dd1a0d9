#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>
#include <lockstep/weights.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "base/file.h"

namespace lockstep::checkpoint {

// Safetensors files with LibTorch's tensors. base/safetensors.h parses their headers.

struct SafetensorsTensor {
  std::string name;
  at::ScalarType dtype = at::kFloat;
  std::vector<int64_t> shape;
  int64_t begin = 0;  // byte offsets from the end of the header
  int64_t end = 0;
};

struct SafetensorsHeader {
  std::vector<SafetensorsTensor> tensors;  // in the order of their bytes
  std::map<std::string, std::string> metadata;
  int64_t bytes = 0;  // of length field and text: the offset of the data
};

// One safetensors file: a shard of a checkpoint, or a file that Python wrote. It has no checksums.
// Threads may read at the same time. CheckpointError: the file is truncated or broken. ConfigError:
// it has no tensor of this name.
class SafetensorsFile {
 public:
  // Reads the header.
  explicit SafetensorsFile(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return file_.path(); }
  const SafetensorsHeader& header() const { return header_; }
  std::vector<std::string> names() const;

  // A new tensor in host memory.
  at::Tensor read(const std::string& name) const;

 private:
  base::InputFile file_;
  SafetensorsHeader header_;
};

// Where the tensors of a new file go.
struct SafetensorsLayout {
  // The order of the data, by the index in the list given. Large elements are first, so that each
  // tensor is aligned to its dtype: Python maps the file and uses the tensors in place.
  std::vector<size_t> order;
  std::vector<SafetensorsTensor> tensors;  // in this order, with begin and end
  std::string header;                      // the bytes before the data; a multiple of 8
  int64_t file_bytes = 0;
};

// `begin` and `end` of the tensors are not used. Their dtypes must be among those of safetensors.
// ConfigError: a name is not UTF-8, or there are too many tensors for one file.
SafetensorsLayout layout_safetensors(const std::vector<SafetensorsTensor>& tensors);

// Writes a file that Python opens with safetensors.torch.load_file. The format has no shared memory:
// a tensor under two names is stored twice. A reader sees all of the file or nothing. ConfigError: it
// cannot be written, or the format cannot hold a tensor, which the text names.
void write_safetensors_file(const std::filesystem::path& path, const NamedTensors& tensors);

}  // namespace lockstep::checkpoint
