// Sigma2's script for CIFAR-100.

#include <fmt/format.h>
#include <lockstep/callbacks.h>
#include <lockstep/error.h>
#include <lockstep/launch.h>
#include <lockstep/models.h>
#include <lockstep/trainer.h>
#include <torch/torch.h>

#include <algorithm>

#include "recipes/epoch_progress.h"
#include "recipes/image_data.h"
#include "recipes/printed_lines.h"
#include "recipes/recipe.h"

namespace lockstep::recipes {
namespace {

struct CifarOptions {
  TrainConfig train;
  ImageDataOptions images;
  int64_t batch_size = 512;
  std::string precision = "auto";
  double base_lr = 0.01;
  double momentum = 0.9;
  double weight_decay = 5e-4;
  double target_accuracy = 0.85;
  int64_t patience = 2;
  std::string channels_last = "auto";
  int64_t test_batch_size = 500;

  CifarOptions() {
    train.max_iter = 5;
    train.val_every = 1;
    train.val_at_start = false;
    train.checkpoint_every = 10;
    train.run_name = "cifar100";
    train.global_batch_size = batch_size;
  }

  ProgramOptions own() {
    ProgramOptions table;
    table.description = "Sigma2's Wide ResNet on CIFAR-100.";
    images.add_to(table);
    table
        .add("batch_size", batch_size, "samples per step over all ranks; a multiple of their number",
             {.minimum = 1, .aliases = {"global_batch_size"}})
        .add("precision", precision, "precision of the forward pass; auto: fp16 on GPUs, fp32 on CPUs",
             {.choices = {"auto", "fp32", "bf16", "fp16"}})
        .add("base_lr", base_lr, "learning rate, for any number of ranks", {.minimum = 0})
        .add("momentum", momentum, "momentum of SGD; the page's script for one GPU has 0", {.minimum = 0})
        .add("weight_decay", weight_decay, "weight decay of SGD; the page's script for one GPU has 0",
             {.minimum = 0})
        .add("target_accuracy", target_accuracy, "accuracy at which training stops, a fraction",
             {.minimum = 0, .maximum = 1})
        .add("patience", patience, "validations in a row that reach the target; 0: never stop early",
             {.minimum = 0})
        .add("channels_last", channels_last, "layout of images and weights; auto: on GPUs",
             {.choices = {"auto", "yes", "no"}})
        .add("test_batch_size", test_batch_size, "samples per batch on each rank in tests", {.minimum = 1});
    return table;
  }
};

class CifarTrainer : public Trainer {
 public:
  CifarTrainer(World& world, Model model, torch::optim::Optimizer& optimizer, const TrainConfig& config,
               const Loader& train, int64_t rank_batch_size, std::shared_ptr<TrainingTime> time,
               std::shared_ptr<StopAtTarget> target)
      : Trainer(world, std::move(model), optimizer, config, cross_entropy_with_accuracy),
        steps_(*this, train, this->config().batch_size.value_or(rank_batch_size)),
        time_(std::move(time)),
        target_(std::move(target)) {}

 protected:
  void on_train_epoch_start() override {
    steps_.begin(*this);
    time_->begin(steps_);
  }

  void on_train_batch_end(const LossResult&) override { steps_.take(); }

  void on_train_epoch_end() override {
    const int64_t every = config().val_every;
    if (every > 0 && result().iteration % every == 0) return;  // the lines come with the validation's
    print(epoch_completed_line(numbers()));
    print(epoch_throughput_line(numbers()));
  }

  void on_val_epoch_end() override {
    if (result().iteration == 0) {  // --val-at-start
      print(validation_line(metric("val_loss"), metric("val_accuracy")));
      return;
    }
    print(epoch_completed_line(numbers()));
    print(validation_line(metric("val_loss"), metric("val_accuracy")));
    print(epoch_throughput_line(numbers()));
    if (target_ && target_->reached()) print(early_stopping_line(result().iteration));
  }

 private:
  EpochNumbers numbers() const {
    return {.epoch = result().iteration,
            .epochs = config().max_iter,
            .seconds = time_->epoch_seconds(),
            .images_per_s = time_->epoch_images_per_s()};
  }

  EpochSteps steps_;
  const std::shared_ptr<TrainingTime> time_;
  const std::shared_ptr<StopAtTarget> target_;
};

bool is_yes(const std::string& choice, bool automatic) {
  return choice == "auto" ? automatic : choice == "yes";
}

// The page's numbers for both splits, its augmentation for training alone.
ImageTransform transform_of(bool train, bool channels_last) {
  ImageTransform transform{.mean = {0.5071F, 0.4867F, 0.4408F}, .stddev = {0.2675F, 0.2565F, 0.2761F}};
  if (train) {
    transform.random_crop = 32;
    transform.padding = 4;
    transform.flip_probability = 0.5;
  }
  if (channels_last) transform.layout = ImageTransform::Layout::kChannelsLast;
  return transform;
}

std::shared_ptr<torch::optim::SGD> make_optimizer(const Model& model, const CifarOptions& options) {
  return std::make_shared<torch::optim::SGD>(model.module()->parameters(),
                                             torch::optim::SGDOptions(options.base_lr)
                                                 .momentum(options.momentum)
                                                 .weight_decay(options.weight_decay));
}

int64_t rank_batch_size(const CifarOptions& options, const World& world) {
  const int64_t parts = world.size() * options.train.accumulate_steps;
  if (!options.train.deepspeed_config.empty()) return std::max<int64_t>(1, options.batch_size / parts);
  if (options.batch_size % parts == 0) return options.batch_size / parts;
  throw ConfigError(
      "train",
      fmt::format("batch_size is over all ranks and must divide by them: {} by {} rank(s){}; set it to "
                  "a multiple of {}",
                  options.batch_size, world.size(),
                  options.train.accumulate_steps > 1
                      ? fmt::format(" times accumulate_steps {}", options.train.accumulate_steps)
                      : "",
                  parts));
}

// Also where the file has no batch: the flag is over all ranks, and the file's is of one.
void refuse_governed(const CifarOptions& options) {
  if (options.train.deepspeed_config.empty() || options.batch_size == CifarOptions().batch_size) return;
  throw ConfigError("train",
                    "--batch-size does not go with --deepspeed_config, whose file says it: leave it out");
}

void announce(const World& world, const CifarOptions& options, const JobShape& shape) {
  if (!world.is_main()) return;
  fmt::print("{}\n", training_started_lines(shape));
  if (options.patience == 0) fmt::print("Early stopping is off: patience is 0.\n");
  std::fflush(stdout);
}

void train_cifar100(World& world, const CifarOptions& options) {
  const bool on_gpu = world.device().is_cuda();
  const bool channels_last = is_yes(options.channels_last, on_gpu);
  const ImageDataOptions& images = options.images;
  int64_t batch_size = 0;
  ImageSet train_set;
  ImageSet test_set;
  on_every_rank(world.communicator(), [&] {
    batch_size = rank_batch_size(options, world);
    train_set = find_images("cifar100", images, Split::kTrain);
    check_classes(*train_set, 100, "this recipe is for the set of its name");
    test_set = find_images("cifar100", images, Split::kTest);
  });
  const Loader train = image_loader(train_set, images, transform_of(/*train=*/true, channels_last),
                                    {.batch_size = batch_size, .shuffle = true, .drop_last = true}, world);
  const Loader test = image_loader(test_set, images, transform_of(/*train=*/false, channels_last),
                                   {.batch_size = options.test_batch_size}, world);
  const Model model = models::wide_resnet();
  if (channels_last) use_channels_last(*model.module());
  const auto optimizer = make_optimizer(model, options);

  TrainConfig config = options.train;
  if (config.deepspeed_config.empty()) {
    config.precision = options.precision != "auto" ? options.precision : on_gpu ? "fp16" : "fp32";
    config.global_batch_size = options.batch_size;
  } else {
    config.batch_size = batch_size;  // where the file has none
    config.global_batch_size.reset();
  }
  const auto time = std::make_shared<TrainingTime>();
  config.callbacks.push_back(time);
  std::shared_ptr<StopAtTarget> target;
  if (options.patience > 0) {
    target = std::make_shared<StopAtTarget>("val_accuracy", options.target_accuracy, options.patience);
    config.callbacks.push_back(target);
  }
  const JobShape shape = job_shape(world);
  announce(world, options, shape);
  CifarTrainer trainer(world, model, *optimizer, config, train, batch_size, time, target);
  const FitResult result = trainer.fit(train, test);
  if (result.stopped != "interrupted") {
    trainer.print(training_summary_lines(shape, time->seconds(), time->images_per_s()));
  }
  trainer.write_report();
}

}  // namespace

std::string cifar100_defaults() {
  const CifarOptions options;
  return fmt::format(
      "--epochs {} --batch-size {} (over all ranks) --base-lr {} --target-accuracy {} --patience {}",
      options.train.max_iter, options.batch_size, options.base_lr, options.target_accuracy, options.patience);
}

RecipeModel cifar100_model(const std::string& size) {
  require_no_size("cifar100", size);
  const CifarOptions options;
  const Model model = models::wide_resnet();
  return {.model = model,
          .optimizer = make_optimizer(model, options),
          .sample_shape = {3, 32, 32},
          .batch_size = 0,
          .global_batch_size = options.batch_size};
}

int run_cifar100(int argc, const char* const* argv) {
  CifarOptions options;
  options.train = TrainConfig::from_args(argc, argv, options.train, options.own());
  refuse_governed(options);
  return launch(options.train, [&](World& world) { train_cifar100(world, options); });
}

}  // namespace lockstep::recipes
