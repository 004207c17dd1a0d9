// The information content of a small network's loss, for the comparison with Python.
//
//   information_content FILE.npz ETA
//
// The file has the inputs x, the targets y, the thresholds epsilons and the walk variations. Prints the
// content of each threshold and the three bounds as JSON.
#include <lockstep/json.h>
#include <lockstep/landscape.h>
#include <lockstep/search.h>
#include <lockstep/weights.h>
#include <torch/torch.h>

#include <cstdio>
#include <string>
#include <vector>

int main(int /*argc*/, char** argv) {
  const std::string file = argv[1];
  const double eta = std::stod(argv[2]);
  const lockstep::Batch batch{
      .tensors = {lockstep::read_tensor(file + ":x"), lockstep::read_tensor(file + ":y")}};
  torch::nn::Sequential net(torch::nn::Linear(2, 3), torch::nn::Tanh(), torch::nn::Linear(3, 1));
  const at::Tensor before = lockstep::get_parameters(*net);
  lockstep::InformationContentOptions options;
  options.variations = lockstep::read_tensor(file + ":variations");
  const lockstep::InformationContent content(net, lockstep::mse, batch,
                                             lockstep::read_tensor(file + ":epsilons"), options);
  const lockstep::IcGradBounds bounds = lockstep::get_ic_grad_bounds(content, eta);
  const auto* values = content.values().const_data_ptr<float>();
  const lockstep::Json result = {{"values", std::vector<double>(values, values + content.values().numel())},
                                 {"max_lower", bounds.max_lower},
                                 {"max_upper", bounds.max_upper},
                                 {"sensitivity_upper", bounds.sensitivity_upper},
                                 {"restored", torch::equal(before, lockstep::get_parameters(*net))}};
  std::printf("%s\n", result.dump().c_str());
}
