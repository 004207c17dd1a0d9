#pragma once

#include <torch/torch.h>

#include <cstring>
#include <string>
#include <string_view>

#include "checkpoint/pickle.h"
#include "checkpoint/state_dict.h"
#include "checkpoint/torch_file.h"

namespace lockstep::fuzz {

// Makes the tensors that a reader found, over storages of 4 KiB. What a tensor shows can be read.
inline size_t make_tensors(const checkpoint::TensorReferences& references) {
  constexpr size_t kStorageBytes = 4096;
  checkpoint::StoredTensors storages(
      [](const std::string&) { return kStorageBytes; },
      [](const std::string&, void* memory, size_t size) { std::memset(memory, 0, size); },
      100 * kStorageBytes, false);
  const NamedTensors tensors = storages.make(references);
  for (const auto& [name, tensor] : tensors) tensor.clone(at::MemoryFormat::Contiguous);
  return tensors.size();
}

// The pickle of a state dict.
inline bool takes_pickle(std::string_view bytes) {
  try {
    const checkpoint::Pickle pickle = checkpoint::parse_pickle(bytes);
    make_tensors(checkpoint::find_state_dict(pickle.root));
    return true;
  } catch (const checkpoint::PickleError&) {
    return false;
  }
}

}  // namespace lockstep::fuzz
