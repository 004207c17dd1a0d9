#pragma once

#include <caffe2/serialize/read_adapter_interface.h>

#include <cstdint>
#include <filesystem>
#include <string>

#include "base/unique_fd.h"

namespace lockstep::interop {

// A file that is read at any place. LibTorch's archive reader asks for what the archive
// says; a place beyond the end gives fewer bytes, never another file's memory.
class FileBytes final : public caffe2::serialize::ReadAdapterInterface {
 public:
  // ConfigError: the file cannot be opened or is none.
  explicit FileBytes(const std::filesystem::path& path);

  size_t size() const override { return size_; }
  // Returns what there is, less than n at the end. ConfigError: the disk fails.
  size_t read(uint64_t position, void* buffer, size_t n, const char* what = "") const override;
  std::string read_text(uint64_t position, size_t n) const;

 private:
  std::filesystem::path path_;
  base::UniqueFd fd_;
  size_t size_ = 0;
};

}  // namespace lockstep::interop
