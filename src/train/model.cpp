#include <lockstep/model.h>
#include <torch/torch.h>

namespace lockstep {

at::Tensor Model::operator()(const at::Tensor& input) const { return forward_(input); }

}  // namespace lockstep
