#pragma once

#include <functional>

namespace at {
class Tensor;
}

namespace lockstep {

struct Batch;
class Model;

// The loss of one batch: a scalar, the mean over the batch's samples, with a graph
// that leads to the model's parameters.
using Loss = std::function<at::Tensor(const Batch&, const Model&)>;

// batch.data() through the model against batch.target().
at::Tensor mse(const Batch& batch, const Model& model);
// Targets are class indices, outputs unnormalised scores.
at::Tensor cross_entropy(const Batch& batch, const Model& model);
// Targets are class indices, outputs log-probabilities.
at::Tensor nll(const Batch& batch, const Model& model);

}  // namespace lockstep
