// Images a second of training steps of Sigma2's Wide ResNet or of vit_b_16 on a GPU, or of its forward in a
// validation, the batch already there, with the fastest algorithm of each convolution. Prints
// one JSON line.
//
//   build/bin/bench/gpu_steps BATCH_SIZE fp32|bf16|fp16 graph|eager|validation [wide_resnet|vit_b_16]

#include <lockstep/lockstep.h>
#include <lockstep/models.h>
#include <torch/torch.h>

#include <chrono>
#include <cstdio>
#include <string>

namespace {

using namespace lockstep;

constexpr int64_t kWarmUp = 20;
constexpr int64_t kSteps = 100;

// One batch for all steps, on the device.
class SameBatch : public Dataset {
 public:
  SameBatch(int64_t batch_size, int64_t batches, int64_t side, c10::Device device)
      : size_(batch_size * batches),
        images_(torch::randn({batch_size, 3, side, side}, device).contiguous(at::MemoryFormat::ChannelsLast)),
        labels_(torch::randint(100, {batch_size}, torch::TensorOptions(device).dtype(torch::kLong))) {}

  int64_t size() const override { return size_; }
  Example get(int64_t index, uint64_t /*seed*/) const override {
    const int64_t place = index % images_.size(0);
    return {images_[place], labels_[place]};
  }
  Batch get_batch(std::span<const int64_t>, const SampleSeeds&) const override {
    Batch batch;
    batch.tensors = {images_, labels_};
    return batch;
  }

 private:
  int64_t size_;
  at::Tensor images_, labels_;
};

double now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

struct Workload {
  Model model;
  std::unique_ptr<torch::optim::Optimizer> optimizer;
  int64_t side;  // pixels of an image
};

Workload workload_of(const std::string& name) {
  torch::manual_seed(0);
  if (name == "vit_b_16") {
    const Model model = models::vision_transformer();
    return {
        model,
        std::make_unique<torch::optim::AdamW>(model.module()->parameters(), torch::optim::AdamWOptions(1e-3)),
        224};
  }
  const Model model = models::wide_resnet();
  for (at::Tensor& parameter : model.module()->parameters()) {
    if (parameter.dim() == 4) parameter.set_data(parameter.contiguous(at::MemoryFormat::ChannelsLast));
  }
  return {model,
          std::make_unique<torch::optim::SGD>(
              model.module()->parameters(), torch::optim::SGDOptions(0.01).momentum(0.9).weight_decay(5e-4)),
          32};
}

double validated_images_per_s(Trainer& trainer, const World& world, int64_t batch_size, int64_t side) {
  const auto seconds_of = [&](int64_t batches) {
    const double start = now_s();
    trainer.validate(
        Loader(SameBatch(batch_size, batches, side, world.device()), {.batch_size = batch_size}));
    return now_s() - start;
  };
  seconds_of(kWarmUp);
  return static_cast<double>(kSteps * batch_size) / seconds_of(kSteps);
}

double images_per_s(World& world, const TrainConfig& defaults, int64_t batch_size, const std::string& how,
                    const std::string& name) {
  const Workload workload = workload_of(name);
  double start = 0, end = 0;
  TrainConfig config = defaults;
  config.callbacks = {
      std::make_shared<Callback>(CallbackOptions{.on = Stage::kTrainBatchStart}, [&](Trainer& trainer) {
        if (trainer.result().step == kWarmUp || trainer.result().step == kWarmUp + kSteps) {
          torch::cuda::synchronize();
          (trainer.result().step == kWarmUp ? start : end) = now_s();
        }
      })};
  Trainer trainer(world, workload.model, *workload.optimizer, config, cross_entropy);
  if (how == "validation") return validated_images_per_s(trainer, world, batch_size, workload.side);
  trainer.fit(Loader(SameBatch(batch_size, 1, workload.side, world.device()),
                     {.batch_size = batch_size, .endless = true}));
  return static_cast<double>(kSteps * batch_size) / (end - start);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4 && argc != 5) {
    std::fprintf(
        stderr, "usage: gpu_steps BATCH_SIZE fp32|bf16|fp16 graph|eager|validation [wide_resnet|vit_b_16]\n");
    return 2;
  }
  TrainConfig config;
  config.nprocs = 1;
  config.compute_setup = "gpu";
  config.max_iter = 1;
  config.max_batches = kWarmUp + kSteps + 1;
  config.precision = argv[2];
  const std::string how = argv[3];
  config.cuda_graph = how == "graph";
  config.cudnn_benchmark = true;
  config.tracking_tool = "none";
  config.verbose = false;
  config.root_folder = "/tmp/lockstep-bench-runs";
  return launch(config, [&](World& world) {
    std::printf("{\"value\": %.1f, \"unit\": \"img/s\"}\n",
                images_per_s(world, config, std::stoll(argv[1]), how, argc == 5 ? argv[4] : "wide_resnet"));
  });
}
