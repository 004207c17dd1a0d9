// LUMI's script: a vision transformer on pictures in one HDF5 file.

#include <fmt/format.h>
#include <lockstep/callbacks.h>
#include <lockstep/images.h>
#include <lockstep/launch.h>
#include <lockstep/models.h>
#include <lockstep/optim.h>
#include <lockstep/sharded.h>
#include <lockstep/trainer.h>
#include <lockstep/weights.h>
#include <torch/torch.h>

#include <chrono>
#include <filesystem>
#include <optional>

#include "recipes/image_data.h"
#include "recipes/printed_lines.h"
#include "recipes/recipe.h"

namespace lockstep::recipes {
namespace {

// The page's pictures are 256 pixels high before 224 of them are cut out.
constexpr int64_t kResized = 256;
constexpr int64_t kCropped = 224;

struct VitOptions {
  TrainConfig train;
  ImageDataOptions images;
  std::string model = "base";
  std::string weights;
  int64_t image_size = kCropped;
  int64_t classes = 1000;
  double lr = 1e-3;
  double train_fraction = 0.8;
  bool save_model = true;
  bool activation_checkpointing = false;

  VitOptions() {
    train.max_iter = 10;
    train.batch_size = 32;
    train.val_every = 1;
    train.val_at_start = false;
    train.checkpoint_every = 1;
    train.run_name = "vit";
  }

  ProgramOptions own() {
    ProgramOptions table;
    table.description = "LUMI's vision transformer on an HDF5 file with 'images' and 'labels'.";
    table.without = {"global_batch_size"};
    images.add_to(table, /*without_validation=*/true);
    table.add("model", model, "size of the transformer", {.choices = {"tiny", "small", "base"}})
        .add("weights", weights, "file of torchvision's weights to begin with: *.pth, *.pt, *.safetensors")
        .add("image_size", image_size, "pixels of a side, a multiple of 16", {.minimum = 16})
        .add("classes", classes, "outputs of the model; the page keeps ImageNet's 1000", {.minimum = 1})
        .add("lr", lr, "learning rate of Adam", {.minimum = 0})
        .add("train_fraction", train_fraction, "part of the images to train on; the others validate",
             {.minimum = 0, .maximum = 1})
        .add("activation_checkpointing", activation_checkpointing,
             "compute the activations of blocks again in backward instead of keeping them")
        .add("save_model", save_model, "write the weights for Python's torch.load into the run folder");
    return table;
  }
};

class VitTrainer : public Trainer {
 public:
  VitTrainer(World& world, Model model, torch::optim::Optimizer& optimizer, const TrainConfig& config)
      : Trainer(world, std::move(model), optimizer, config, cross_entropy_with_accuracy) {}

 protected:
  void on_train_epoch_end() override { print(training_loss_line(result().iteration, metric("train_loss"))); }
  void on_val_epoch_end() override {
    const int64_t samples = result().evaluated_samples;
    print(validation_accuracy_line(correct_count(metric("val_accuracy"), samples), samples));
  }
};

// On a GPU LibTorch's Adam, which runs as one kernel and can be recorded; elsewhere the one with Python's
// bits. Each resumes from checkpoints of the other.
std::unique_ptr<torch::optim::Optimizer> make_adam(const Model& model, const VitOptions& options,
                                                   const c10::Device& device) {
  const bool is_recorded = options.train.cuda_graph;  // refused on a CPU, with that reason
  if (!device.is_cuda() && !is_recorded)
    return make_python_adam(model.module()->parameters(), {.lr = options.lr});
  return std::make_unique<torch::optim::Adam>(model.module()->parameters(),
                                              torch::optim::AdamOptions(options.lr));
}

Model make_model(const VitOptions& options) {
  auto shape = models::VisionTransformerOptions::preset(options.model);
  shape.image_size = options.image_size;
  shape.classes = options.classes;
  Model model = models::vision_transformer(shape);
  if (!options.weights.empty()) models::load_vision_transformer(model, options.weights);
  if (options.activation_checkpointing) set_activation_checkpointing(*model.module());
  return model;
}

ImageTransform transform_of(const VitOptions& options) {
  ImageTransform transform{.mean = {0.485F, 0.456F, 0.406F}, .stddev = {0.229F, 0.224F, 0.225F}};
  transform.resize = static_cast<int>(options.image_size * kResized / kCropped);
  transform.center_crop = static_cast<int>(options.image_size);
  return transform;
}

// Named as the page names it.
void save_model(Trainer& trainer, const VitOptions& options) {
  const std::string size = options.model == "base" ? "b" : options.model == "small" ? "s" : "ti";
  const auto file = std::filesystem::path(trainer.run_folder()) / fmt::format("vit_{}_16_imagenet.pth", size);
  trainer.save_weights(file.string());
  trainer.print(fmt::format("Weights: {}", file.string()));
}

void train_vit(World& world, const VitOptions& options) {
  ImageSet images;
  on_every_rank(world.communicator(), [&] {
    images = find_images("tiny-imagenet", options.images, Split::kTrain);
    check_classes(*images, options.classes, "give --classes");
  });
  const ImageSplit split = split_images(images, options.train_fraction, options.train.seed);
  const int64_t batch_size = *options.train.batch_size;
  const Loader train = image_loader(split.train, options.images, transform_of(options),
                                    {.batch_size = batch_size, .shuffle = true}, world);
  const Loader validation = image_loader(split.validation, options.images, transform_of(options),
                                         {.batch_size = batch_size}, world);
  std::optional<Model> made;
  on_every_rank(world.communicator(), [&] { made = make_model(options); });  // its weights are a file, too
  const Model& model = *made;
  const auto optimizer = make_adam(model, options, world.device());
  TrainConfig config = options.train;
  VitTrainer trainer(world, model, *optimizer, config);
  const auto start = std::chrono::steady_clock::now();
  const FitResult result = trainer.fit(train, validation);
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  const bool whole = result.stopped != "interrupted";
  if (whole) trainer.print(time_elapsed_line(elapsed.count()));
  if (whole && options.save_model) save_model(trainer, options);
  trainer.write_report();
}

}  // namespace

std::string vit_defaults() {
  const VitOptions options;
  return fmt::format("--model {} --epochs {} --batch-size {} (a rank) --lr {}", options.model,
                     options.train.max_iter, *options.train.batch_size, options.lr);
}

RecipeModel vit_model(const std::string& size) {
  VitOptions options;
  if (!size.empty()) options.model = size;
  const Model model = make_model(options);
  return {.model = model,
          .optimizer = make_python_adam(model.module()->parameters(), {.lr = options.lr}),
          .sample_shape = {3, options.image_size, options.image_size},
          .batch_size = *options.train.batch_size,
          .global_batch_size = 0};
}

int run_vit(int argc, const char* const* argv) {
  VitOptions options;
  options.train = TrainConfig::from_args(argc, argv, options.train, options.own());
  return launch(options.train, [&](World& world) { train_vit(world, options); });
}

}  // namespace lockstep::recipes
