#include <lockstep/loader.h>
#include <lockstep/loss.h>
#include <lockstep/model.h>
#include <torch/torch.h>

namespace lockstep {

at::Tensor mse(const Batch& batch, const Model& model) {
  return torch::mse_loss(model(batch.data()), batch.target());
}

at::Tensor cross_entropy(const Batch& batch, const Model& model) {
  return torch::cross_entropy_loss(model(batch.data()), batch.target());
}

at::Tensor nll(const Batch& batch, const Model& model) {
  return torch::nll_loss(model(batch.data()), batch.target());
}

}  // namespace lockstep
