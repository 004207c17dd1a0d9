#pragma once

#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::base {

// Reads files with tensors that Python wrote: NumPy's .npy and .npz, and safetensors. The content
// decides, not the name of the file.

// A tensor of a file: what it is, and its elements as bytes, least significant byte first.
struct FileTensor {
  std::string name;   // empty in a .npy file, which has one tensor without a name
  std::string dtype;  // as safetensors names it: "F32"; "C128" too, which only NumPy has
  std::vector<int64_t> shape;
  // The first dimension changes fastest (NumPy's Fortran order), not the last.
  bool is_fortran = false;
  std::shared_ptr<const void> owner;  // of the bytes
  std::span<const uint8_t> bytes;
  // Where the elements are in the file; nullopt: they were unpacked from an archive.
  std::optional<uint64_t> offset;

  // "a.npz, tensor 'x'", for messages.
  std::string place(const std::filesystem::path& path) const;
};

// The bytes of an element; 0: unknown.
int64_t tensor_dtype_bytes(std::string_view dtype);

// All tensors of a file. .npy and safetensors are mapped: the processes of a node share one copy. The
// arrays of .npz are unpacked into memory, which grows with the data and not with the sizes in a header.
// ConfigError of the component names the file and the place in it.
std::vector<FileTensor> read_tensor_file(const std::filesystem::path& path, std::string_view component);

// Whether the first bytes of a file are those of one of these formats.
bool is_tensor_file(const std::filesystem::path& path);

// "FILE" or "FILE:NAME", as flags name a tensor. A file whose name has a colon is one too, if it
// exists.
struct TensorSource {
  std::filesystem::path path;
  std::string name;  // empty: not given
};
TensorSource parse_tensor_source(std::string_view text);

// Which of `names` a source means: the given one, or else the only one, or else the first of `usual`
// that is there. ConfigError lists the names.
size_t select_tensor(const TensorSource& source, const std::vector<std::string>& names,
                     std::initializer_list<std::string_view> usual, std::string_view component);

}  // namespace lockstep::base
