// Trains models of include/lockstep/models.h as programs/model_training.py does with their
// Python originals, and programs/deepspeed_training.py with DeepSpeed (cases with "zero");
// tests/peers/test_models.py and test_deepspeed_training.py compare what they have written.
//
//   model_training CASE.json...
//
// All cases have the same number of ranks. For each, rank R writes losses.R.json, and rank 0
// weights.safetensors and prediction.safetensors, to the case's folder.

#include <lockstep/data.h>
#include <lockstep/data_parallel.h>
#include <lockstep/deepspeed.h>
#include <lockstep/deepspeed_config.h>
#include <lockstep/launch.h>
#include <lockstep/models.h>
#include <lockstep/optim.h>
#include <lockstep/schedule.h>
#include <lockstep/trainer.h>
#include <lockstep/weights.h>
#include <torch/torch.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "checkpoint/weights.h"

namespace {

using nlohmann::json;
namespace models = lockstep::models;

lockstep::Model make_vision_transformer(const json& options) {
  auto made = models::VisionTransformerOptions::preset(options.value("preset", "base"));
  made.image_size = options.value("image_size", made.image_size);
  made.patch_size = options.value("patch_size", made.patch_size);
  made.layers = options.value("layers", made.layers);
  made.heads = options.value("heads", made.heads);
  made.hidden_size = options.value("hidden_size", made.hidden_size);
  made.mlp_size = options.value("mlp_size", made.mlp_size);
  made.classes = options.value("classes", made.classes);
  made.dropout = options.value("dropout", made.dropout);
  made.attention_dropout = options.value("attention_dropout", made.attention_dropout);
  return models::vision_transformer(made);
}

lockstep::Model make_model(const std::string& name, const json& options) {
  if (name == "mlp") return models::mlp(options.at("sizes"));
  if (name == "princeton_cnn") return models::princeton_cnn();
  if (name == "wide_resnet") {
    models::WideResNetOptions made;
    made.widen_factor = options.value("widen_factor", made.widen_factor);
    return models::wide_resnet(made);
  }
  if (name == "vision_transformer") return make_vision_transformer(options);
  throw std::invalid_argument("no model " + name);
}

std::unique_ptr<torch::optim::Optimizer> make_optimizer(const std::string& name,
                                                        const std::vector<at::Tensor>& parameters) {
  if (name == "adadelta") return lockstep::make_adadelta(parameters, {.lr = 1.0});
  if (name == "adam") return lockstep::make_python_adam(parameters, {.lr = 1e-3});
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
  Batch batch{torch::randn(shape, generator),
              torch::randint(spec.at("classes").get<int64_t>(), {shape[0]}, generator, torch::kLong)};
  if (spec.value("channels_last", false)) {
    batch.inputs = batch.inputs.contiguous(at::MemoryFormat::ChannelsLast);
  }
  return batch;
}

at::Tensor loss_of(const json& spec, const at::Tensor& output, const at::Tensor& classes) {
  return spec.at("model") == "princeton_cnn" ? torch::nll_loss(output, classes)
                                             : torch::cross_entropy_loss(output, classes);
}

json train(const json& spec, const lockstep::Model& model, lockstep::World& world) {
  lockstep::GradientSync sync(model.module(), world.communicator());
  const auto optimizer = make_optimizer(spec.at("optimizer"), model.module()->parameters());
  lockstep::ScheduledLearningRate rate(*optimizer, lockstep::step_decay({.every = 1, .gamma = 0.7}));
  torch::manual_seed(static_cast<uint64_t>(spec.at("seed").get<int64_t>() + 100 + world.rank()));
  json losses = json::array();
  for (int64_t step = 0; step < spec.at("steps"); ++step) {
    const Batch batch = make_batch(spec, step * world.size() + world.rank());
    sync.zero_grad();
    sync.prepare_forward();
    const at::Tensor loss = loss_of(spec, model(batch.inputs), batch.classes);
    loss.backward();
    optimizer->step();
    losses.push_back(static_cast<double>(loss.item<float>()));
    if (spec.at("optimizer") == "adadelta" && step % 10 == 9) rate.advance();
  }
  sync.sync_buffers();
  return losses;
}

std::unique_ptr<torch::optim::AdamW> make_adamw(const json& zero, const lockstep::Model& model) {
  return std::make_unique<torch::optim::AdamW>(
      model.module()->parameters(),
      torch::optim::AdamWOptions(zero.at("lr")).weight_decay(zero.at("weight_decay")));
}

at::ScalarType dtype_of(const json& zero) {
  if (zero.at("dtype") == "float16") return torch::kHalf;
  return zero.at("dtype") == "bfloat16" ? torch::kBFloat16 : torch::kFloat;
}

// What programs/deepspeed_training.py gives DeepSpeed.
lockstep::DeepSpeedConfig configuration(const json& spec) {
  const json& zero = spec.at("zero");
  json config = {
      {"train_micro_batch_size_per_gpu", spec.at("batch").at(0)},
      {"gradient_clipping", zero.at("clip")},
      {"optimizer",
       {{"type", "AdamW"},
        {"params",
         {{"lr", zero.at("lr")}, {"weight_decay", zero.at("weight_decay")}, {"torch_adam", true}}}}},
      {"zero_optimization", {{"stage", zero.at("stage")}, {"stage3_param_persistence_threshold", 0}}}};
  if (zero.at("dtype") == "bfloat16") config["bf16"] = {{"enabled", true}};
  if (zero.at("dtype") == "float16") {
    config["fp16"] = zero.at("fp16");
    config["fp16"]["enabled"] = true;
  }
  return lockstep::DeepSpeedConfig::from_text(config.dump(), "the case");
}

// An engine calls the forward of a module.
struct NetImpl : torch::nn::Module {
  explicit NetImpl(lockstep::Model wrapped) : model(std::move(wrapped)) {
    register_module("model", model.module());
  }
  at::Tensor forward(const at::Tensor& x) { return model(x); }
  lockstep::Model model;
};

json train_by_engine(const json& spec, const lockstep::Model& model, lockstep::World& world,
                     const std::filesystem::path& folder) {
  const at::ScalarType dtype = dtype_of(spec.at("zero"));
  auto engine = lockstep::initialize(std::make_shared<NetImpl>(model), configuration(spec), world);
  json losses = json::array();
  json scales = json::array();  // after each step, and how many were left out until then
  for (int64_t step = 0; step < spec.at("steps"); ++step) {
    const Batch batch = make_batch(spec, step * world.size() + world.rank());
    const at::Tensor output = engine.forward(batch.inputs.to(dtype)).to(torch::kFloat);
    const at::Tensor loss = loss_of(spec, output, batch.classes);
    engine.backward(loss);
    engine.step();
    losses.push_back(static_cast<double>(loss.item<float>()));
    if (dtype == torch::kHalf) scales.push_back({engine.loss_scale(), engine.skipped_steps()});
  }
  const auto whole = engine.gather_parameters();
  if (!world.is_main()) return losses;
  lockstep::save_weights(*model.module(), folder / "weights.safetensors");
  std::ofstream(folder / "scales.json") << scales;
  return losses;
}

// Steps [first, end) as samples that the loader deals out to the ranks in this order.
lockstep::TensorDataset make_samples(const json& spec, int64_t first, int64_t end, int ranks) {
  std::vector<at::Tensor> inputs;
  std::vector<at::Tensor> classes;
  for (int64_t step = first; step < end; ++step) {
    std::vector<Batch> batches;
    for (int64_t rank = 0; rank < ranks; ++rank) batches.push_back(make_batch(spec, step * ranks + rank));
    for (int64_t i = 0; i < batches[0].inputs.size(0); ++i) {
      for (const Batch& batch : batches) {
        inputs.push_back(batch.inputs[i]);
        classes.push_back(batch.classes[i]);
      }
    }
  }
  return {torch::stack(inputs), torch::stack(classes)};
}

// Goes on by the trainer from a checkpoint that was made at some step.
json train_on(const json& spec, const lockstep::Model& model, lockstep::World& world,
              const std::filesystem::path& folder) {
  const json& zero = spec.at("zero");
  lockstep::TrainConfig config;
  config.max_iter = 1;
  config.zero.stage = zero.at("stage");
  config.zero.persistence_threshold = 0;
  config.dtype = zero.at("dtype");
  config.clip_grad_norm = zero.at("clip");
  config.resume = spec.at("resume");
  config.log_folder = folder / "run";
  config.tracking_tool = "none";
  config.verbose = false;
  const auto optimizer = make_adamw(zero, model);
  json losses = json::array();
  lockstep::Trainer trainer(world, model, *optimizer, config,
                            [&](const lockstep::Batch& batch, const lockstep::Model& net) {
                              const at::Tensor output = net(batch.data()).to(torch::kFloat);
                              const at::Tensor loss = loss_of(spec, output, batch.target());
                              losses.push_back(static_cast<double>(loss.item<float>()));
                              return lockstep::LossResult(loss);
                            });
  const int64_t batch_size = spec.at("batch").at(0);
  trainer.fit(lockstep::Loader(make_samples(spec, spec.at("first_step"), spec.at("steps"), world.size()),
                               {.batch_size = batch_size}));
  trainer.save_weights(folder / "weights.safetensors");
  return losses;
}

// module.to(memory_format=torch.channels_last)
void use_channels_last(torch::nn::Module& module) {
  for (at::Tensor parameter : module.parameters()) {
    if (parameter.dim() == 4) parameter.set_data(parameter.contiguous(at::MemoryFormat::ChannelsLast));
  }
}

void run_case(const std::filesystem::path& file, lockstep::World& world) {
  const json spec = json::parse(std::ifstream(file));
  torch::manual_seed(spec.at("seed").get<uint64_t>());
  const lockstep::Model model = make_model(spec.at("model"), spec.at("options"));
  if (spec.contains("weights")) {
    models::load_vision_transformer(model, spec.at("weights").get<std::string>());
  }
  if (spec.value("channels_last", false)) use_channels_last(*model.module());
  const auto folder = file.parent_path();
  std::ofstream losses(folder / ("losses." + std::to_string(world.rank()) + ".json"));
  if (spec.contains("zero")) {
    losses << (spec.contains("resume") ? train_on : train_by_engine)(spec, model, world, folder);
    return;
  }
  losses << train(spec, model, world);
  if (!world.is_main()) return;
  lockstep::save_weights(*model.module(), folder / "weights.safetensors");
  model.module()->eval();
  const torch::NoGradGuard no_grad;
  lockstep::checkpoint::write_weights(folder / "prediction.safetensors",
                                      {{"output", model(make_batch(spec, -1).inputs)}});
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
