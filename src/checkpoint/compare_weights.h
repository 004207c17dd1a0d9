#pragma once

#include <ATen/core/Tensor.h>
#include <lockstep/weights.h>

#include <cstdint>
#include <string>
#include <vector>

namespace torch::nn {
class Module;
}

namespace lockstep::checkpoint {

// The parameters, then the buffers, under the same names as in Python: what Python's state dict has.
NamedTensors weights_of(const torch::nn::Module& module);
// The buffers that are not part of it, each once.
NamedTensors non_persistent_buffers(const torch::nn::Module& module);

// The prefix that DistributedDataParallel and torch.compile put before every name: "module." or
// "_orig_mod.", once or more. Empty: there is none.
std::string wrapper_prefix(const NamedTensors& tensors);

// How the weights of a file fit those of a model. Names are compared without wrapper_prefix(); results
// have the names of the model. A name that one side lacks is not a difference if the same tensor has
// another name there (tied weights).
struct WeightMatch {
  struct Pair {
    std::string name;
    at::Tensor to;
    at::Tensor from;
  };
  std::vector<Pair> pairs;  // of equal shape
  std::vector<Pair> other_shape;
  std::vector<std::string> missing;
  std::vector<std::string> unexpected;

  std::vector<std::string> other_dtype() const;
  // One line for each difference, at most twenty, then the number of the others. Empty: no
  // difference.
  std::string differences() const;
};

WeightMatch match_weights(const NamedTensors& model, const NamedTensors& file);

struct Tolerance {
  double relative = 0;  // times the value of b
  double absolute = 0;
};

struct TensorDifference {
  int64_t elements = 0;      // that are not equal; NaN equals NaN
  int64_t out_of_range = 0;  // by more than absolute + relative * |b|
  double max_absolute = 0;   // infinity if only one side is NaN or infinite
  double max_relative = 0;   // infinity if b is 0
};

// Compares two host tensors of equal shape and any dtypes. Converts parts of them, so that it needs
// little memory.
TensorDifference compare_tensors(const at::Tensor& a, const at::Tensor& b, const Tolerance& tolerance);

}  // namespace lockstep::checkpoint
