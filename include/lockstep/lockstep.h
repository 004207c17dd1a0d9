#pragma once

// Includes the headers that a training program needs: launch, configuration, data, models, optimizers,
// trainer, sharding, trackers. Each of them can also be included alone, which compiles faster. json.h
// is included by the others; c10d.h, exported_model.h, nn.h and script_model.h are not included here
// because most programs do not need them.
//
// Example:
//
//   #include <lockstep/lockstep.h>
//   #include <torch/torch.h>
//
//   int main(int argc, char** argv) {
//     return lockstep::launch(argc, argv, {.max_iter = 2}, [](lockstep::World& world, const auto& config) {
//       const torch::Tensor x = torch::rand({64, 1});
//       lockstep::Loader loader(lockstep::TensorDataset{x, 2 * x}, {.batch_size = 16});
//       torch::nn::Linear model(1, 1);
//       torch::optim::SGD optimizer(model->parameters(), 0.1);
//       lockstep::Trainer(world, model, optimizer, config, lockstep::mse).fit(loader);
//     });
//   }
//
// More: docs/README.md, docs/trainer.md

#include <lockstep/callbacks.h>
#include <lockstep/communicator.h>
#include <lockstep/config.h>
#include <lockstep/data.h>
#include <lockstep/data_parallel.h>
#include <lockstep/deepspeed.h>
#include <lockstep/deepspeed_config.h>
#include <lockstep/error.h>
#include <lockstep/image_files.h>
#include <lockstep/images.h>
#include <lockstep/landscape.h>
#include <lockstep/launch.h>
#include <lockstep/model.h>
#include <lockstep/models.h>
#include <lockstep/optim.h>
#include <lockstep/physics.h>
#include <lockstep/rank_map.h>
#include <lockstep/schedule.h>
#include <lockstep/search.h>
#include <lockstep/sharded.h>
#include <lockstep/track.h>
#include <lockstep/trainer.h>
#include <lockstep/version.h>
#include <lockstep/weights.h>
#include <lockstep/zero.h>
