// Trains models that torch.export saved as programs/exported_training.py does with the models themselves;
// tests/peers/test_exported.py compares what they have written.
//
//   exported_training CASE.json...
//
// All cases have the same number of ranks. The model of a case is model.pt2 beside the case. For each, rank R
// writes losses.R.json, and rank 0 weights.pt and prediction.safetensors, to the case's folder.

#include <lockstep/data_parallel.h>
#include <lockstep/exported_model.h>
#include <lockstep/launch.h>
#include <lockstep/optim.h>
#include <torch/torch.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "checkpoint/weights.h"

namespace {

using nlohmann::json;

std::unique_ptr<torch::optim::Optimizer> make_optimizer(const std::string& name,
                                                        const std::vector<at::Tensor>& parameters) {
  if (name == "adam") return lockstep::make_python_adam(parameters, {.lr = 1e-3});
  if (name == "adam_fused") return lockstep::make_cpu_adam(parameters, {.lr = 1e-3, .adam_w_mode = false});
  if (name == "adamw_fused") return lockstep::make_cpu_adam(parameters, {.lr = 1e-3, .weight_decay = 0.01});
  return std::make_unique<torch::optim::SGD>(parameters,
                                             torch::optim::SGDOptions(0.01).momentum(0.9).weight_decay(5e-4));
}

struct Batch {
  at::Tensor inputs;
  at::Tensor classes;
};

// The batch of this number, the same in Python.
Batch make_batch(const json& spec, int64_t number) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(static_cast<uint64_t>(1000 + number));
  const auto shape = spec.at("batch").get<std::vector<int64_t>>();
  const auto target = spec.value("target", std::vector<int64_t>{shape[0]});
  Batch batch;
  batch.inputs = spec.contains("tokens")
                     ? torch::randint(spec.at("tokens").get<int64_t>(), shape, generator, torch::kLong)
                     : torch::randn(shape, generator);
  batch.classes = torch::randint(spec.at("classes").get<int64_t>(), target, generator, torch::kLong);
  return batch;
}

at::Tensor call(const json& spec, lockstep::ExportedModel& model, const at::Tensor& inputs) {
  if (!spec.contains("output")) return model->forward(inputs);
  const at::Tensor extra = inputs.slice(1, 0, 4).flatten();
  const auto outputs = model->run({{"x", inputs}, {"extra.0", extra}, {"weight", torch::tensor(2.0F)}});
  return outputs.at(spec.at("output")).toTensor();
}

json train(const json& spec, lockstep::ExportedModel& model, lockstep::World& world) {
  lockstep::GradientSync sync(model.ptr(), world.communicator());
  const auto optimizer = make_optimizer(spec.at("optimizer"), model->parameters());
  torch::manual_seed(static_cast<uint64_t>(spec.at("seed").get<int64_t>() + 100 + world.rank()));
  json losses = json::array();
  for (int64_t step = 0; step < spec.at("steps"); ++step) {
    const Batch batch = make_batch(spec, step * world.size() + world.rank());
    sync.zero_grad();
    sync.prepare_forward();
    const at::Tensor loss = torch::cross_entropy_loss(call(spec, model, batch.inputs), batch.classes);
    loss.backward();
    optimizer->step();
    losses.push_back(static_cast<double>(loss.item<float>()));
  }
  sync.sync_buffers();
  return losses;
}

void run_case(const std::filesystem::path& file, lockstep::World& world) {
  const json spec = json::parse(std::ifstream(file));
  const auto folder = file.parent_path();
  lockstep::ExportedModel model(folder / "model.pt2");
  model->recompute_by(spec.value("recompute_by", ""));
  std::ofstream(folder / ("losses." + std::to_string(world.rank()) + ".json")) << train(spec, model, world);
  if (!world.is_main()) return;
  model->save_state_dict(folder / "weights.pt");
  model->eval();
  const torch::NoGradGuard no_grad;
  lockstep::checkpoint::write_weights(folder / "prediction.safetensors",
                                      {{"output", call(spec, model, make_batch(spec, -1).inputs)}});
}

}  // namespace

int main(int argc, char** argv) {
  return lockstep::run_main([&] {
    lockstep::TrainConfig config;
    config.backend = "gloo";
    config.nprocs = json::parse(std::ifstream(argv[1])).at("ranks");
    return lockstep::launch(config, [&](lockstep::World& world) {
      torch::set_num_threads(1);
      for (int i = 1; i < argc; ++i) run_case(argv[i], world);
    });
  });
}
