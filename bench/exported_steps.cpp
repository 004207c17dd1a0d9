// Models that torch.export saved: training steps, loading, and what a node of the program costs. The models
// are those of bench/peers/exported_steps.py, which writes the files. Prints one JSON line.
//
//   exported_steps train FILE STEPS SHAPE...   steps/s with SGD; SHAPE of an input: 8x3x64x64
//   exported_steps load FILE                   seconds until the model is ready
//   exported_steps nodes FILE                  us a node of the file "chain" over the same LibTorch module

#include <lockstep/exported_model.h>
#include <lockstep/launch.h>
#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

std::vector<int64_t> shape_of(const std::string& text) {
  std::vector<int64_t> shape;
  std::istringstream sizes(text);
  for (std::string size; std::getline(sizes, size, 'x');) shape.push_back(std::stoll(size));
  return shape;
}

double steps_per_second(const char* file, int64_t steps, const std::vector<c10::IValue>& inputs) {
  torch::set_num_threads(2);
  lockstep::ExportedModel model(file);
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.01));
  const auto step = [&] {
    optimizer.zero_grad();
    model->run(inputs)[0].toTensor().square().mean().backward();
    optimizer.step();
  };
  for (int64_t i = 0; i < std::max<int64_t>(3, steps / 10); ++i) step();
  const Clock::time_point start = Clock::now();
  for (int64_t i = 0; i < steps; ++i) step();
  return static_cast<double>(steps) / seconds_since(start);
}

// Chain of bench/peers/exported_steps.py by hand.
constexpr int64_t kChainNodes = 2000;

struct ChainImpl : torch::nn::Module {
  ChainImpl() : shift(register_parameter("shift", torch::zeros({8}))) {}
  at::Tensor forward(at::Tensor x) {
    for (int64_t i = 0; i < kChainNodes / 2; ++i) x = torch::tanh(x) + shift;
    return x;
  }

  at::Tensor shift;
};
TORCH_MODULE(Chain);

// Both run alternately, so that a machine that becomes slower affects both.
double us_per_node(const char* file) {
  constexpr int kRuns = 300;
  torch::set_num_threads(1);
  lockstep::ExportedModel exported(file);
  Chain by_hand;
  const at::Tensor x = torch::ones({8});
  const auto seconds = [&x](auto& model) {
    const Clock::time_point start = Clock::now();
    const at::Tensor result = model->forward(x);
    return seconds_since(start);
  };
  std::vector<double> difference;
  for (int i = 0; i < kRuns; ++i) {
    const double own = seconds(exported);
    difference.push_back(own - seconds(by_hand));
  }
  std::nth_element(difference.begin(), difference.begin() + kRuns / 2, difference.end());
  // A program may be the faster one; a benchmark compares positive numbers.
  return std::max(0.01, difference[kRuns / 2] / kChainNodes * 1e6);
}

void print(double value, const char* unit) {
  std::printf("{\"value\": %.6g, \"unit\": \"%s\"}\n", value, unit);
}

void run(int argc, char** argv) {
  const std::string_view mode = argc > 2 ? argv[1] : "";
  if (mode == "train" && argc > 4) {
    torch::manual_seed(0);
    std::vector<c10::IValue> inputs;
    for (int i = 4; i < argc; ++i) inputs.emplace_back(torch::randn(shape_of(argv[i])));
    print(steps_per_second(argv[2], std::stoll(argv[3]), inputs), "steps/s");
  } else if (mode == "load" && argc == 3) {
    const Clock::time_point start = Clock::now();
    const lockstep::ExportedModel model(argv[2]);
    print(seconds_since(start), "s");
  } else if (mode == "nodes" && argc == 3) {
    print(us_per_node(argv[2]), "us");
  } else {
    throw lockstep::ConfigError("bench",
                                "usage: exported_steps train FILE STEPS SHAPE... | load FILE | nodes FILE");
  }
}

}  // namespace

// As a rank of a job, like `lockstep train`: launch() tunes malloc for training.
int main(int argc, char** argv) {
  const char* program[] = {argv[0]};
  return lockstep::launch(1, program, {},
                          [&](lockstep::World&, const lockstep::TrainConfig&) { run(argc, argv); });
}
