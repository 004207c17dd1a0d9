#include "interop/safetensors_writer.h"

#include <fmt/format.h>
#include <lockstep/error.h>
#include <torch/torch.h>

#include <algorithm>

#include "base/atomic_file.h"
#include "checkpoint/dtype.h"
#include "checkpoint/safetensors.h"

namespace lockstep::interop {
namespace {

// Largest elements first, so that each tensor lies on a multiple of its element's size:
// Python maps the file and views it.
NamedTensors aligned_order(const NamedTensors& tensors) {
  NamedTensors sorted = tensors;
  std::stable_sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) {
    return a.second.element_size() > b.second.element_size();
  });
  return sorted;
}

checkpoint::SafetensorsHeader header_of(const NamedTensors& tensors) {
  checkpoint::SafetensorsHeader header;
  header.metadata["format"] = "pt";
  int64_t position = 0;
  for (const auto& [name, tensor] : tensors) {
    if (!checkpoint::dtype_name(tensor.scalar_type()) || tensor.layout() != at::kStrided) {
      throw ConfigError("interop",
                        fmt::format("safetensors cannot hold tensor '{}': {}", name, tensor.toString()));
    }
    const auto bytes = static_cast<int64_t>(tensor.nbytes());
    header.tensors.push_back({name, tensor.scalar_type(), tensor.sizes().vec(), position, position + bytes});
    position += bytes;
  }
  return header;
}

}  // namespace

void write_safetensors_file(const std::filesystem::path& path, const NamedTensors& tensors) {
  const NamedTensors sorted = aligned_order(tensors);
  const std::string header = checkpoint::encode_header(header_of(sorted));
  base::publish_file(path, [&](const base::Append& append) {
    append(header);
    for (const auto& entry : sorted) {
      const at::Tensor tensor = entry.second.detach().cpu().resolve_conj().resolve_neg().contiguous();
      append({static_cast<const char*>(tensor.const_data_ptr()), tensor.nbytes()});
    }
  });
}

}  // namespace lockstep::interop
