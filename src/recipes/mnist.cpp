// Princeton's script for MNIST, and the same for Fashion-MNIST.

#include <fmt/format.h>
#include <lockstep/callbacks.h>
#include <lockstep/error.h>
#include <lockstep/launch.h>
#include <lockstep/models.h>
#include <lockstep/optim.h>
#include <lockstep/trainer.h>
#include <lockstep/weights.h>
#include <torch/torch.h>

#include "recipes/epoch_progress.h"
#include "recipes/image_data.h"
#include "recipes/printed_lines.h"
#include "recipes/recipe.h"

namespace lockstep::recipes {
namespace {

struct MnistOptions {
  TrainConfig train;
  ImageDataOptions images;
  int64_t test_batch_size = 1000;
  double lr = 1;
  double gamma = 0.7;
  bool no_cuda = false;
  bool no_mps = false;
  bool dry_run = false;
  int64_t log_interval = 10;
  bool save_model = false;

  MnistOptions() {
    train.max_iter = 14;
    train.batch_size = 64;
    train.seed = 1;
    train.val_every = 1;
    train.val_at_start = false;
    train.checkpoint_every = 1;
  }

  ProgramOptions own(const char* data_set) {
    ProgramOptions table;
    table.description = fmt::format("Princeton's network on {}.", data_set);
    table.without = {"global_batch_size"};
    images.add_to(table);
    table.add("test_batch_size", test_batch_size, "samples per batch on each rank in tests", {.minimum = 1})
        .add("lr", lr, "learning rate of Adadelta", {.minimum = 0})
        .add("gamma", gamma, "factor of the learning rate after every epoch", {.minimum = 0})
        .add("no_cuda", no_cuda, "train on CPUs: the same as --compute-setup cpu", {.negatable = false})
        .add("no_mps", no_mps, "accepted and without effect: it is for Apple's GPUs", {.negatable = false})
        .add("dry_run", dry_run, "train on one batch per epoch and test all samples, to check the set-up")
        .add("log_interval", log_interval, "batches between two lines", {.minimum = 1})
        .add("save_model", save_model, "write the weights for Python's torch.load at the end");
    return table;
  }
};

// A data set of 28 x 28 grey pictures in ten classes.
struct Variant {
  const char* name;
  const char* weights_file;
  float mean;
  float stddev;
};

constexpr Variant kMnist{"mnist", "mnist_cnn.pt", 0.1307F, 0.3081F};
constexpr Variant kFashionMnist{"fashion-mnist", "fashion_mnist_cnn.pt", 0.2860F, 0.3530F};

class MnistTrainer : public Trainer {
 public:
  MnistTrainer(World& world, Model model, torch::optim::Optimizer& optimizer, TrainConfig train_config,
               int64_t log_interval, const Loader& train)
      : Trainer(world, std::move(model), optimizer, std::move(train_config), nll_with_accuracy),
        log_interval_(log_interval),
        batch_size_(*config().batch_size),
        samples_(train.dataset_size()),
        steps_(*this, train, batch_size_) {}

 protected:
  void on_train_epoch_start() override { steps_.begin(*this); }

  void on_train_batch_end(const LossResult& result) override {
    const int64_t step = steps_.take();
    if (step % log_interval_ != 0 || !world().is_main()) return;
    const int64_t batch = step * config().accumulate_steps;
    print(train_epoch_line({.epoch = this->result().iteration,
                            .seen = batch * batch_size_ * world().size(),
                            .total = samples_,
                            .batch = batch,
                            .batches = steps_.batches(),
                            .loss = result.loss.item<double>()}));
  }

  void on_val_epoch_end() override {
    const int64_t samples = result().evaluated_samples;
    print(test_set_line(metric("val_loss"), correct_count(metric("val_accuracy"), samples), samples));
  }

 private:
  const int64_t log_interval_;
  const int64_t batch_size_;
  const int64_t samples_;
  EpochSteps steps_;
};

void save_model(Trainer& trainer, const Variant& variant) {
  trainer.save_weights(variant.weights_file);
  trainer.print(fmt::format("Weights: {}", variant.weights_file));
}

void train_mnist(World& world, const MnistOptions& options, const Variant& variant) {
  const ImageTransform transform{.mean = {variant.mean}, .stddev = {variant.stddev}};
  const ImageDataOptions& images = options.images;
  ImageSet train_set;
  ImageSet test_set;
  on_every_rank(world.communicator(), [&] {
    train_set = find_images(variant.name, images, Split::kTrain);
    check_classes(*train_set, 10, "this recipe is for the set of its name");
    test_set = find_images(variant.name, images, Split::kTest);
  });
  const Loader train = image_loader(train_set, images, transform,
                                    {.batch_size = *options.train.batch_size, .shuffle = true}, world);
  const Loader test =
      image_loader(test_set, images, transform, {.batch_size = options.test_batch_size}, world);
  const Model model = models::princeton_cnn();
  const auto optimizer = make_adadelta(model.module()->parameters(), {.lr = options.lr});
  TrainConfig config = options.train;
  // As on the page, a dry run tests all samples, and max_batches would limit the tests too.
  if (options.dry_run && !config.max_val_batches) config.max_val_batches = test.num_batches();
  MnistTrainer trainer(world, model, *optimizer, config, options.log_interval, train);
  trainer.print(ddp_start_lines(job_shape(world)));
  const FitResult result = trainer.fit(train, test);
  if (options.save_model && result.stopped != "interrupted") save_model(trainer, variant);
  trainer.write_report();
}

int run(const Variant& variant, int argc, const char* const* argv) {
  MnistOptions options;
  options.train.run_name = variant.name;
  options.train = TrainConfig::from_args(argc, argv, options.train, options.own(variant.name));
  if (options.no_cuda) options.train.compute_setup = "cpu";
  if (options.dry_run) options.train.max_batches = 1;
  options.train.callbacks.push_back(
      std::make_shared<ScheduleLearningRate>(step_decay({.every = 1, .gamma = options.gamma})));
  return launch(options.train, [&](World& world) { train_mnist(world, options, variant); });
}

}  // namespace

std::string mnist_defaults() {
  const MnistOptions options;
  return fmt::format("--epochs {} --batch-size {} (a rank) --lr {:.1f} --gamma {} --seed {}",
                     options.train.max_iter, *options.train.batch_size, options.lr, options.gamma,
                     options.train.seed);
}

RecipeModel mnist_model(const std::string& size) {
  require_no_size("mnist", size);
  const MnistOptions options;
  const Model model = models::princeton_cnn();
  return {.model = model,
          .optimizer = make_adadelta(model.module()->parameters(), {.lr = options.lr}),
          .sample_shape = {1, 28, 28},
          .batch_size = *options.train.batch_size,
          .global_batch_size = 0};
}

int run_mnist(int argc, const char* const* argv) { return run(kMnist, argc, argv); }
int run_fashion_mnist(int argc, const char* const* argv) { return run(kFashionMnist, argc, argv); }

}  // namespace lockstep::recipes
