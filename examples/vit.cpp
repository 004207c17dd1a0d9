// A vision transformer on pictures in one HDF5 file with the data sets `images` and
// `labels`. `lockstep train vit` is the same with every printed line of LUMI's page.
//
//   build/bin/vit --nprocs 8 --compute-setup gpu --data train_images.hdf5
//   build/bin/vit --data synthetic --model tiny --image-size 32 --max-batches 2 --val-every 0
//
// prints a line an epoch, from rank 0:
//
//   P  0|cuda:0 | Iteration       1| Train_Loss: 4.8315211 - Train_Accuracy: 0.0431250 - Val_Accuracy: ...
//   ...
//   Run folder: ./runs/vit_20261115T031500_1a2b

#include <lockstep/lockstep.h>
#include <torch/torch.h>

int main(int argc, char** argv) {
  lockstep::TrainConfig defaults;
  defaults.max_iter = 10;
  defaults.val_every = 1;
  defaults.val_at_start = false;
  defaults.print_every = 1;
  std::string data;
  std::string size = "base";
  int64_t image_size = 224;
  const lockstep::ProgramOptions own = {{"data", data, "HDF5 file, or synthetic"},
                                        {"model", size, "tiny, small or base"},
                                        {"image_size", image_size, "pixels of a side"}};
  return lockstep::launch(
      argc, argv, defaults, own, [&](lockstep::World& world, const lockstep::TrainConfig& config) {
        // One seed for all ranks: nobody trains on what another one validates with.
        const auto split = lockstep::split_images(
            lockstep::find_image_set("tiny-imagenet", data, lockstep::Split::kTrain), 0.8, config.seed);
        lockstep::ImageTransform transform{.mean = {0.485F, 0.456F, 0.406F},
                                           .stddev = {0.229F, 0.224F, 0.225F}};
        transform.resize = static_cast<int>(image_size * 256 / 224);
        transform.center_crop = static_cast<int>(image_size);
        const lockstep::Loader train(lockstep::ImageDataset(split.train, transform),
                                     {.batch_size = 32, .shuffle = true, .num_workers = 4});
        const lockstep::Loader validation(lockstep::ImageDataset(split.validation, transform),
                                          {.batch_size = 32, .num_workers = 4});
        auto shape = lockstep::models::VisionTransformerOptions::preset(size);
        shape.image_size = image_size;
        const lockstep::Model model = lockstep::models::vision_transformer(shape);
        torch::optim::Adam optimizer(model.module()->parameters(), torch::optim::AdamOptions(1e-3));
        lockstep::Trainer trainer(world, model, optimizer, config, lockstep::cross_entropy_with_accuracy);
        trainer.fit(train, validation);
        trainer.save_weights(trainer.run_folder() + "/vit.pth");
      });
}
