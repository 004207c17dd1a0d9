#pragma once

#include <string>
#include <vector>

#include <lockstep/named_tensors.h>

namespace torch::nn {
class Module;
}

namespace lockstep::interop {

// Parameters, then buffers, under the names that Python gives them too.
NamedTensors weights_of(const torch::nn::Module& module);

// "module." or "_orig_mod." before each name, once or more, or nothing: what
// DistributedDataParallel and torch.compile put there.
std::string wrapper_prefix(const NamedTensors& tensors);

// How the weights of a file fit those of a model. Names are compared without the
// wrapper's prefix; those of the model are told. A name that one side lacks is no
// difference where another name for the same tensor is there: tied weights.
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
  // One line for each difference, some twenty at most, then how many more there are.
  // Empty: the two are alike.
  std::string differences() const;
};

WeightMatch match_weights(const NamedTensors& model, const NamedTensors& file);

}  // namespace lockstep::interop
