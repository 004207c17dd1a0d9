// A Wide ResNet on CIFAR-100, in mixed precision. `lockstep train cifar100` is the same with
// every flag and printed line of Sigma2's page.
//
//   build/bin/cifar100 --nprocs 4 --compute-setup gpu --precision bf16 --epochs 100
//   build/bin/cifar100 --data synthetic --global-batch-size 8 --max-batches 2 --val-every 0
//
// prints a line an epoch, from rank 0:
//
//   P  0|cuda:0 | Iteration       1| Train_Loss: 3.9874122 - Train_Accuracy: 0.0901367 - Val_Accuracy: ...
//   ...
//   Run folder: ./runs/cifar100_20261115T031500_1a2b

#include <lockstep/lockstep.h>
#include <torch/torch.h>

namespace {

// Training images are flipped and shifted, test images are not.
lockstep::ImageTransform transform_of(lockstep::Split split) {
  lockstep::ImageTransform transform{.mean = {0.5071F, 0.4867F, 0.4408F},
                                     .stddev = {0.2675F, 0.2565F, 0.2761F}};
  if (split == lockstep::Split::kTrain) {
    transform.random_crop = 32;
    transform.padding = 4;
    transform.flip_probability = 0.5;
  }
  return transform;
}

}  // namespace

int main(int argc, char** argv) {
  lockstep::TrainConfig defaults;
  defaults.max_iter = 5;
  defaults.global_batch_size = 512;
  defaults.val_every = 1;
  defaults.val_at_start = false;
  defaults.print_every = 1;
  std::string data;
  double base_lr = 0.01;
  const lockstep::ProgramOptions own = {{"data", data, "folder or archive of the data, or synthetic"},
                                        {"base_lr", base_lr, "learning rate"}};
  return lockstep::launch(
      argc, argv, defaults, own, [&](lockstep::World& world, lockstep::TrainConfig config) {
        const auto loader = [&](lockstep::Split split, const lockstep::LoaderOptions& options) {
          return lockstep::Loader(
              lockstep::ImageDataset(lockstep::find_image_set("cifar100", data, split), transform_of(split)),
              options);
        };
        const auto train =
            loader(lockstep::Split::kTrain, {.shuffle = true, .drop_last = true, .num_workers = 4});
        const auto test = loader(lockstep::Split::kTest, {.batch_size = 500, .num_workers = 4});
        const lockstep::Model model = lockstep::models::wide_resnet();
        torch::optim::SGD optimizer(model.module()->parameters(),
                                    torch::optim::SGDOptions(base_lr).momentum(0.9).weight_decay(5e-4));
        config.callbacks.push_back(std::make_shared<lockstep::StopAtTarget>("val_accuracy", 0.85, 2));
        lockstep::Trainer trainer(world, model, optimizer, config, lockstep::cross_entropy_with_accuracy);
        trainer.fit(train, test);
      });
}
