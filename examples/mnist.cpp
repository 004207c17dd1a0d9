// Princeton's MNIST network on as many processes as you like. `lockstep train mnist` is
// the same with every flag and printed line of Princeton's page.
//
//   build/bin/mnist --nprocs 2 --data /usr/share/datasets/fashion-mnist
//   build/bin/mnist --nprocs 2 --data synthetic --epochs 2
//
// prints a line an epoch, from rank 0:
//
//   P  0|cpu    | Iteration       1| Train_Loss: 0.6329718 - Train_Accuracy: 0.7742667 - Val_Accuracy: ...
//   ...
//   Trained 14 epochs (6566 steps) on 2 ranks in 310.52 s: final loss 0.2031453
//   Run folder: ./runs/mnist_20261115T031500_1a2b

#include <lockstep/lockstep.h>
#include <torch/torch.h>

int main(int argc, char** argv) {
  lockstep::TrainConfig defaults;
  defaults.max_iter = 14;
  defaults.seed = 1;
  defaults.val_every = 1;
  defaults.print_every = 1;
  std::string data;
  double lr = 1.0;
  const lockstep::ProgramOptions own = {{"data", data, "folder of the data, or synthetic"},
                                        {"lr", lr, "learning rate"}};
  return lockstep::launch(
      argc, argv, defaults, own, [&](lockstep::World& world, lockstep::TrainConfig config) {
        const lockstep::ImageTransform transform{.mean = {0.1307F}, .stddev = {0.3081F}};
        const auto loader = [&](lockstep::Split split, const lockstep::LoaderOptions& options) {
          return lockstep::Loader(
              lockstep::ImageDataset(lockstep::find_image_set("mnist", data, split), transform), options);
        };
        const auto train = loader(lockstep::Split::kTrain, {.batch_size = 64, .shuffle = true});
        const auto test = loader(lockstep::Split::kTest, {.batch_size = 1000});
        const lockstep::Model model = lockstep::models::princeton_cnn();
        const auto optimizer = lockstep::make_adadelta(model.module()->parameters(), {.lr = lr});
        config.callbacks.push_back(std::make_shared<lockstep::ScheduleLearningRate>(
            lockstep::step_decay({.every = 1, .gamma = 0.7})));
        lockstep::Trainer trainer(world, model, *optimizer, config, lockstep::nll_with_accuracy);
        trainer.fit(train, test);
      });
}
