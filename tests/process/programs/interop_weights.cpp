// The C++ half of tests/peers/test_interop.py: models with the names and shapes of the
// ones there, fed with weights and data that Python wrote.
//
//   interop_weights predict mlp|cnn|SCRIPT WEIGHTS DATA OUTPUT
//   interop_weights train SCRIPT DATA STEPS LEARNING_RATE WEIGHTS_OUT SCRIPT_OUT
//   interop_weights convert FROM TO

#include <lockstep/launch.h>
#include <lockstep/model.h>
#include <lockstep/script_model.h>
#include <lockstep/weights.h>
#include <torch/torch.h>

#include <map>
#include <string>
#include <vector>

#include "checkpoint/torch_file.h"
#include "checkpoint/weights.h"

namespace {

namespace nn = torch::nn;
using lockstep::checkpoint::read_torch_file;

lockstep::Model make_model(const std::string& name) {
  if (name == "mlp") {
    return nn::Sequential(nn::Linear(4, 16), nn::ReLU(), nn::BatchNorm1d(16), nn::Linear(16, 3));
  }
  if (name == "cnn") {
    return nn::Sequential(nn::Conv2d(1, 4, 3), nn::BatchNorm2d(4), nn::ReLU(), nn::MaxPool2d(2),
                          nn::Flatten(), nn::Linear(36, 5));
  }
  return lockstep::ScriptModel(name);
}

std::map<std::string, at::Tensor> read(const std::string& path) {
  const auto tensors = read_torch_file(path);
  return {tensors.begin(), tensors.end()};
}

// Module::to would make the counters of BatchNorm floating-point numbers too.
void convert_floats(torch::nn::Module& module, at::ScalarType dtype) {
  const auto convert_one = [&](at::Tensor tensor) {
    if (tensor.is_floating_point()) tensor.set_data(tensor.to(dtype));
  };
  for (const at::Tensor& tensor : module.parameters()) convert_one(tensor);
  for (const at::Tensor& tensor : module.buffers()) convert_one(tensor);
}

void predict(const std::vector<std::string>& arguments) {
  const lockstep::Model model = make_model(arguments.at(0));
  const at::Tensor input = read(arguments.at(2)).at("input");
  convert_floats(*model.module(), input.scalar_type());
  lockstep::load_weights(*model.module(), arguments.at(1));
  model.module()->eval();
  const torch::NoGradGuard guard;
  lockstep::checkpoint::write_torch_file(arguments.at(3), {{"output", model(input)}});
}

void train(const std::vector<std::string>& arguments) {
  lockstep::ScriptModel script(arguments.at(0));
  const auto data = read(arguments.at(1));
  torch::optim::SGD optimizer(script->parameters(), std::stod(arguments.at(3)));
  const lockstep::Model model = script;
  for (int step = 0; step < std::stoi(arguments.at(2)); ++step) {
    optimizer.zero_grad();
    torch::mse_loss(model(data.at("input")), data.at("target")).backward();
    optimizer.step();
  }
  lockstep::save_weights(*script, arguments.at(4));
  script->eval();
  script->save_script(arguments.at(5));
}

void convert(const std::vector<std::string>& arguments) {
  lockstep::checkpoint::write_weights(arguments.at(1), lockstep::checkpoint::read_weights(arguments.at(0)));
}

}  // namespace

int main(int argc, char** argv) {
  return lockstep::run_main([&] {
    const std::vector<std::string> arguments(argv + 2, argv + argc);
    const std::string command = argv[1];
    torch::set_num_threads(1);
    if (command == "predict") {
      predict(arguments);
    } else if (command == "train") {
      train(arguments);
    } else {
      convert(arguments);
    }
    return lockstep::kExitSuccess;
  });
}
