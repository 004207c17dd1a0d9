#pragma once

#include <caffe2/serialize/inline_container.h>
#include <lockstep/error.h>
#include <torch/torch.h>

#include <array>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>

#include "checkpoint/deepspeed/deepspeed_checkpoint.h"
#include "support/temporary_folder.h"

namespace lockstep::fuzz {

// Elements of all tensors of a checkpoint that can be read.
inline int64_t imported_elements(const std::filesystem::path& path) {
  int64_t elements = 0;
  for (const auto& tensor : checkpoint::open_deepspeed_checkpoint(path).tensors)
    elements += tensor.read().numel();
  return elements;
}

// A file of torch.save with another data.pkl.
inline std::string records_with_pickle(const std::string& file, std::string_view pickle) {
  std::istringstream stream(file);
  caffe2::serialize::PyTorchStreamReader reader(&stream);
  std::string result;
  caffe2::serialize::PyTorchStreamWriter writer([&](const void* bytes, size_t size) {
    result.append(static_cast<const char*>(bytes), size);
    return size;
  });
  for (const std::string& name : reader.getAllRecords()) {
    if (name == "data.pkl" || name.starts_with(".") || name == "version") continue;
    const auto [data, size] = reader.getRecord(name);
    writer.writeRecord(name, data.get(), size);
  }
  writer.writeRecord("data.pkl", pickle.data(), pickle.size());
  writer.writeEndOfFile();
  return result;
}

// A checkpoint of DeepSpeed's in which one file has another pickle: the first byte says which
// file, the rest is the pickle.
class DeepSpeedFolder {
 public:
  static constexpr std::array<std::string_view, 6> kFiles = {
      "stage0/global_step3/mp_rank_00_model_states.pt",
      "stage1/global_step3/mp_rank_00_model_states.pt",
      "stage1/global_step3/zero_pp_rank_0_mp_rank_00_optim_states.pt",
      "stage2/global_step3/zero_pp_rank_1_mp_rank_00_optim_states.pt",
      "stage3/global_step3/zero_pp_rank_0_mp_rank_00_model_states.pt",
      "stage3/global_step3/bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt"};

  DeepSpeedFolder() {
    const char* root = std::getenv("LOCKSTEP_SOURCE_DIR");
    if (root == nullptr) throw std::runtime_error("LOCKSTEP_SOURCE_DIR is not set");
    const std::filesystem::path corpus = std::filesystem::path(root) / "tests/fuzz/deepspeed_checkpoint";
    for (const char* stage : {"stage0", "stage1", "stage2", "stage3"}) {
      std::filesystem::copy(corpus / stage, folder_.path() / stage, std::filesystem::copy_options::recursive);
    }
    for (size_t i = 0; i < kFiles.size(); ++i) {
      std::ifstream file(folder_.path() / kFiles[i], std::ios::binary);
      honest_[i] = std::string(std::istreambuf_iterator<char>(file), {});
    }
  }

  bool takes(size_t which, std::string_view pickle) const {
    const std::filesystem::path path = folder_.path() / kFiles[which];
    write(path, records_with_pickle(honest_[which], pickle));
    bool taken = false;
    try {
      taken = imported_elements(path.parent_path().parent_path()) > 0;
    } catch (const ConfigError&) {
    }
    write(path, honest_[which]);
    return taken;
  }

 private:
  static void write(const std::filesystem::path& path, const std::string& bytes) {
    std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
  }

  test::TemporaryFolder folder_{"/dev/shm"};
  std::array<std::string, kFiles.size()> honest_;
};

inline bool takes_deepspeed_pickle(std::string_view bytes) {
  static const DeepSpeedFolder folder;
  if (bytes.empty()) return false;
  return folder.takes(static_cast<uint8_t>(bytes[0]) % DeepSpeedFolder::kFiles.size(), bytes.substr(1));
}

}  // namespace lockstep::fuzz
