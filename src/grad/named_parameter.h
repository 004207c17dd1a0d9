#pragma once

#include <ATen/core/Tensor.h>

#include <string>

namespace lockstep::grad {

struct NamedParameter {
  std::string name;
  at::Tensor tensor;
};

}  // namespace lockstep::grad
