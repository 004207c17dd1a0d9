// Inside the function of a rank that has data, in the folder of models from Python: tests/consumer/run puts
// model.pt and model.pt2 there.
#include <lockstep/lockstep.h>
#include <torch/torch.h>

void run(lockstep::World& world, const lockstep::TrainConfig& config) {
  lockstep::Loader loader(lockstep::TensorDataset{torch::ones({64, 3}), torch::ones({64, 2})},
                          {.batch_size = 16});
#include DOCS_BLOCK
}
