// Trains a model that does not fit whole into what the process may use: RLIMIT_DATA is set
// so that the states of stage 3 fit and those of stage 2 do not.
//
//   LOCKSTEP_NPROCS=2 limited_training STAGE       with ShardedModel
//   LOCKSTEP_NPROCS=2 limited_training trainer     with a trainer, whole
//   LOCKSTEP_NPROCS=2 limited_training unchecked   whole, by hand

#include <fmt/format.h>
#include <lockstep/lockstep.h>
#include <lockstep/optim.h>
#include <sys/resource.h>
#include <torch/torch.h>

#include <fstream>

namespace {

using namespace lockstep;  // NOLINT(google-build-using-namespace): a small program

constexpr int64_t kWidth = 512;
constexpr int kLayers = 160;

struct LayerImpl : torch::nn::Module {
  LayerImpl() : fc(register_module("fc", torch::nn::Linear(kWidth, kWidth))) {}
  torch::Tensor forward(const torch::Tensor& x) { return torch::tanh(fc(x)); }
  torch::nn::Linear fc;
};
using Layer = Sharded<LayerImpl>;

torch::nn::Sequential make_net() {
  torch::nn::Sequential net;
  for (int i = 0; i < kLayers; ++i) net->push_back(Layer());
  return net;
}

ShardedOptions options_of(int stage) {
  ShardedOptions options;
  options.zero.stage = stage;
  options.zero.bucket_cap_bytes = 1 << 20;
  return options;
}

int64_t data_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    int64_t kib = 0;
    if (word == "VmData:" && status >> kib) return kib * 1024;
  }
  throw std::runtime_error("no VmData in /proc/self/status");
}

// Stage 3 fits with room for what is not states: activations, and holes in the heap. Stage
// 2 does not.
void limit_memory(torch::nn::Module& module, torch::optim::Optimizer& optimizer, int ranks) {
  const ZeroPlan stage2 = plan_zero(module, optimizer, ranks, options_of(2));
  const ZeroPlan stage3 = plan_zero(module, optimizer, ranks, options_of(3));
  const int64_t allowed = (7 * stage2.memory.total() + stage3.memory.total()) / 8;
  const auto bytes = static_cast<rlim_t>(data_bytes() + allowed - stage3.parameter_bytes);
  const rlimit limit{bytes, bytes};
  if (::setrlimit(RLIMIT_DATA, &limit) != 0) throw std::runtime_error("setrlimit failed");
}

void train_within(World& world, const std::string& how) {
  torch::nn::Sequential net = make_net();
  const auto optimizer = make_cpu_adam(net->parameters(), {.lr = 1e-3});
  const torch::Tensor x = torch::rand({2, kWidth});
  limit_memory(*net, *optimizer, world.size());
  if (how == "trainer") {
    Trainer trainer(world, net, *optimizer, {});
    return;
  }
  torch::Tensor loss;
  if (how == "unchecked") {
    GradientSync sync(net.ptr(), world.communicator());
    loss = net->forward(x).square().mean();
    loss.backward();
    optimizer->step();
  } else {
    ShardedModel model(net.ptr(), *optimizer, world.communicator(), options_of(std::stoi(how)));
    for (int step = 0; step < 3; ++step) {
      model.zero_grad();
      model.prepare_forward();
      loss = net->forward(x).square().mean();
      loss.backward();
      model.step();
    }
  }
  if (world.is_main()) fmt::print("trained, loss {}\n", loss.item<double>());
}

}  // namespace

int main(int argc, char** argv) {
  const std::string how = argc > 1 ? argv[1] : "3";
  const char* program[] = {argv[0]};
  return lockstep::launch(1, program, {},
                          [&](World& world, const TrainConfig&) { train_within(world, how); });
}
