// Images a second of training steps of Sigma2's Wide ResNet on a GPU, or of its forward in a
// validation, the batch already there, with the fastest algorithm of each convolution. Prints
// one JSON line.
//
//   build/bin/bench/gpu_steps BATCH_SIZE fp32|bf16|fp16 graph|eager|validation

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
  SameBatch(int64_t batch_size, int64_t batches, c10::Device device)
      : size_(batch_size * batches),
        images_(torch::randn({batch_size, 3, 32, 32}, device).contiguous(at::MemoryFormat::ChannelsLast)),
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

double validated_images_per_s(Trainer& trainer, const World& world, int64_t batch_size) {
  const auto seconds_of = [&](int64_t batches) {
    const double start = now_s();
    trainer.validate(Loader(SameBatch(batch_size, batches, world.device()), {.batch_size = batch_size}));
    return now_s() - start;
  };
  seconds_of(kWarmUp);
  return static_cast<double>(kSteps * batch_size) / seconds_of(kSteps);
}

double images_per_s(World& world, const TrainConfig& defaults, int64_t batch_size, const std::string& how) {
  torch::manual_seed(0);
  const Model model = models::wide_resnet();
  for (at::Tensor& parameter : model.module()->parameters()) {
    if (parameter.dim() == 4) parameter.set_data(parameter.contiguous(at::MemoryFormat::ChannelsLast));
  }
  torch::optim::SGD optimizer(model.module()->parameters(),
                              torch::optim::SGDOptions(0.01).momentum(0.9).weight_decay(5e-4));
  double start = 0, end = 0;
  TrainConfig config = defaults;
  config.callbacks = {
      std::make_shared<Callback>(CallbackOptions{.on = Stage::kTrainBatchStart}, [&](Trainer& trainer) {
        if (trainer.result().step == kWarmUp || trainer.result().step == kWarmUp + kSteps) {
          torch::cuda::synchronize();
          (trainer.result().step == kWarmUp ? start : end) = now_s();
        }
      })};
  Trainer trainer(world, model, optimizer, config, cross_entropy);
  if (how == "validation") return validated_images_per_s(trainer, world, batch_size);
  trainer.fit(Loader(SameBatch(batch_size, 1, world.device()), {.batch_size = batch_size, .endless = true}));
  return static_cast<double>(kSteps * batch_size) / (end - start);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr, "usage: gpu_steps BATCH_SIZE fp32|bf16|fp16 graph|eager|validation\n");
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
                images_per_s(world, config, std::stoll(argv[1]), how));
  });
}
