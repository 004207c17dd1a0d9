// Inside a function that has a set of colour pictures.
#include <lockstep/lockstep.h>
#include <torch/torch.h>

void run(lockstep::World&, const lockstep::TrainConfig&) {
  const lockstep::ImageSet images = lockstep::find_image_set("cifar100", "synthetic", lockstep::Split::kTest);
#include DOCS_BLOCK
  lockstep::Loader::Epoch epoch = loader.epoch(0);
  const lockstep::Batch* batch = epoch.next();
  TORCH_CHECK(batch != nullptr && batch->data().sizes() == torch::IntArrayRef({256, 3, 32, 32}));
}
