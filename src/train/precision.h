#pragma once

#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>

#include <string>

namespace lockstep::train {

// While it exists, operations on this device run in 16 bits where that is safe, as under
// torch.autocast. Precision "fp32" changes nothing. Applies to the thread that made it.
class Autocast {
 public:
  Autocast(const std::string& precision, c10::DeviceType device);
  Autocast(c10::ScalarType dtype, c10::DeviceType device);
  ~Autocast();
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

 private:
  bool active_;
  bool was_enabled_ = false;
  c10::DeviceType device_;
};

}  // namespace lockstep::train

namespace torch::nn {
class Module;
}

namespace lockstep::train {

// Converts floating-point parameters and buffers to this dtype, in place. Module::to(dtype) would also
// convert index and mask buffers.
void convert_floating_point(torch::nn::Module& module, c10::ScalarType dtype);

// float32, float64, bfloat16 or float16. ConfigError: another name.
c10::ScalarType parse_dtype(const std::string& name);

}  // namespace lockstep::train
