#pragma once

// Tensors as safetensors and .npy files.

#include <cstring>
#include <initializer_list>
#include <string>
#include <vector>

namespace lockstep::test {

template <typename Integer>
std::string integers(std::initializer_list<Integer> values) {
  std::string bytes(values.size() * sizeof(Integer), '\0');
  std::memcpy(bytes.data(), values.begin(), bytes.size());
  return bytes;
}

struct NamedTensor {
  std::string name, dtype, shape, data;
};

inline std::string safetensors(const std::vector<NamedTensor>& tensors) {
  std::string header, data;
  for (const NamedTensor& tensor : tensors) {
    header += (header.empty() ? "{\"" : ",\"") + tensor.name + "\":{\"dtype\":\"" + tensor.dtype +
              "\",\"shape\":" + tensor.shape + ",\"data_offsets\":[" + std::to_string(data.size()) + ",";
    data += tensor.data;
    header += std::to_string(data.size()) + "]}";
  }
  header += "}";
  return integers<uint64_t>({header.size()}) + header + data;
}

inline std::string npy(const std::string& descr, const std::string& shape, const std::string& data,
                       const std::string& fortran_order = "False") {
  std::string header =
      "{'descr': '" + descr + "', 'fortran_order': " + fortran_order + ", 'shape': " + shape + ", }";
  header.resize(118 - 10, ' ');
  header += "\n";
  return "\x93NUMPY" + std::string("\x01\x00", 2) +
         integers<uint16_t>({static_cast<uint16_t>(header.size())}) + header + data;
}

}  // namespace lockstep::test
