// Images a second of training steps of Sigma2's Wide ResNet or of vit_b_16 on a GPU, or tokens a second of
// GPT-2 124M with samples of 1024 tokens, or the same of the forward in a validation; the batch is already
// there, and each convolution has its fastest algorithm. Prints one JSON line, with the peak of allocated
// memory.
//
//   build/bin/bench/gpu_steps BATCH_SIZE fp32|bf16|fp16 graph|eager|validation
//   [wide_resnet|vit_b_16|gpt_124M]

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
  SameBatch(std::vector<at::Tensor> tensors, int64_t batches)
      : size_(tensors[0].size(0) * batches), tensors_(std::move(tensors)) {}

  int64_t size() const override { return size_; }
  Example get(int64_t index, uint64_t /*seed*/) const override {
    const int64_t place = index % tensors_[0].size(0);
    return {tensors_[0][place], tensors_[1][place]};
  }
  Batch get_batch(std::span<const int64_t>, const SampleSeeds&) const override {
    Batch batch;
    batch.tensors = tensors_;
    return batch;
  }

 private:
  int64_t size_;
  std::vector<at::Tensor> tensors_;
};

double now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

struct Workload {
  Model model;
  std::unique_ptr<torch::optim::Optimizer> optimizer;
  Loss loss;
  std::vector<at::Tensor> batch;
  std::string unit = "img/s";
  int64_t units = 0;  // of a step
};

std::vector<at::Tensor> images_of(int64_t batch_size, int64_t side, c10::Device device) {
  return {torch::randn({batch_size, 3, side, side}, device).contiguous(at::MemoryFormat::ChannelsLast),
          torch::randint(100, {batch_size}, torch::TensorOptions(device).dtype(torch::kLong))};
}

std::unique_ptr<torch::optim::Optimizer> adam_of(const Model& model) {
  return std::make_unique<torch::optim::AdamW>(model.module()->parameters(),
                                               torch::optim::AdamWOptions(1e-3));
}

Workload workload_of(const std::string& name, int64_t batch_size, c10::Device device) {
  torch::manual_seed(0);
  if (name == "gpt_124M") {
    auto shape = models::GptOptions::preset("124M");
    shape.vocabulary = 50304;
    const Model model = models::gpt(shape);
    const at::Tensor tokens = torch::randint(shape.vocabulary, {batch_size, shape.context + 1},
                                             torch::TensorOptions(device).dtype(torch::kLong));
    return {.model = model,
            .optimizer = adam_of(model),
            .loss = [](const Batch& batch, const Model& gpt) -> LossResult {
              return models::gpt_loss(gpt, batch.data(), batch.target());
            },
            .batch = {tokens.slice(1, 0, shape.context).contiguous(), tokens.slice(1, 1).contiguous()},
            .unit = "tokens/s",
            .units = batch_size* shape.context};
  }
  if (name == "vit_b_16") {
    const Model model = models::vision_transformer();
    return {.model = model,
            .optimizer = adam_of(model),
            .loss = cross_entropy,
            .batch = images_of(batch_size, 224, device),
            .units = batch_size};
  }
  const Model model = models::wide_resnet();
  for (at::Tensor& parameter : model.module()->parameters()) {
    if (parameter.dim() == 4) parameter.set_data(parameter.contiguous(at::MemoryFormat::ChannelsLast));
  }
  return {.model = model,
          .optimizer = std::make_unique<torch::optim::SGD>(
              model.module()->parameters(), torch::optim::SGDOptions(0.01).momentum(0.9).weight_decay(5e-4)),
          .loss = cross_entropy,
          .batch = images_of(batch_size, 32, device),
          .units = batch_size};
}

double validated_per_s(Trainer& trainer, const Workload& workload) {
  const int64_t batch_size = workload.batch[0].size(0);
  const auto seconds_of = [&](int64_t batches) {
    const double start = now_s();
    trainer.validate(Loader(SameBatch(workload.batch, batches), {.batch_size = batch_size}));
    return now_s() - start;
  };
  seconds_of(kWarmUp);
  return static_cast<double>(kSteps * workload.units) / seconds_of(kSteps);
}

double trained_per_s(World& world, const TrainConfig& defaults, const Workload& workload,
                     const std::string& how) {
  double start = 0, end = 0;
  TrainConfig config = defaults;
  config.callbacks = {
      std::make_shared<Callback>(CallbackOptions{.on = Stage::kTrainBatchStart}, [&](Trainer& trainer) {
        if (trainer.result().step == kWarmUp || trainer.result().step == kWarmUp + kSteps) {
          torch::cuda::synchronize();
          (trainer.result().step == kWarmUp ? start : end) = now_s();
        }
      })};
  Trainer trainer(world, workload.model, *workload.optimizer, config, workload.loss);
  if (how == "validation") return validated_per_s(trainer, workload);
  trainer.fit(
      Loader(SameBatch(workload.batch, 1), {.batch_size = workload.batch[0].size(0), .endless = true}));
  return static_cast<double>(kSteps * workload.units) / (end - start);
}

// Bytes of the device that LibTorch had allocated at most.
int64_t peak_bytes(const World& world) {
  return at::getDeviceAllocator(at::kCUDA)->getDeviceStats(world.device().index()).allocated_bytes[0].peak;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4 && argc != 5) {
    std::fprintf(stderr,
                 "usage: gpu_steps BATCH_SIZE fp32|bf16|fp16 graph|eager|validation "
                 "[wide_resnet|vit_b_16|gpt_124M]\n");
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
    const Workload workload =
        workload_of(argc == 5 ? argv[4] : "wide_resnet", std::stoll(argv[1]), world.device());
    const double rate = trained_per_s(world, config, workload, how);
    std::printf("{\"value\": %.1f, \"unit\": \"%s\", \"peak_gib\": %.2f}\n", rate, workload.unit.c_str(),
                static_cast<double>(peak_bytes(world)) / (1 << 30));
  });
}
