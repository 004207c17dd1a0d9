#pragma once

#include <c10/core/ScalarType.h>
#include <lockstep/sharded_model.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace lockstep {

// What training a model with divided states (ZeRO) takes, told before it runs.
struct ZeroPlan {
  struct Bucket {
    c10::ScalarType dtype = c10::ScalarType::Float;
    int64_t elements = 0;  // of its parameters
    int64_t padding = 0;   // elements after them, so that ranks share it evenly
    int64_t part = 0;      // elements that each rank owns
    bool resident = true;  // whole on every rank at all times
    int group = 0;         // of the optimizer
    size_t unit = 0;       // the Sharded module that it belongs to, from 1 on; 0: none
    std::vector<std::string> parameters;
  };

  // Of one rank, when all that a training keeps is there: from the second step on. What
  // ShardedModel::memory() says then, as long as gradients come in the reverse of the order
  // of registration and units run in that order; otherwise buffers may differ.
  ShardedModel::Memory memory;
  int64_t elements = 0;         // trained ones, of the whole model
  int64_t parameter_bytes = 0;  // of these, whole
  int64_t other_bytes = 0;      // frozen parameters and buffers, which every rank has
  std::vector<Bucket> buckets;
};

// As ShardedModel would divide the module over so many ranks: the same code decides.
// Tensors may be on the meta device. The optimizer's state is found out on a small tensor;
// the optimizer is as before afterwards. No communication, no memory to speak of.
//
// ConfigError as the constructor of ShardedModel.
ZeroPlan plan_zero(torch::nn::Module& module, torch::optim::Optimizer& optimizer, int ranks,
                   const ShardedOptions& options);

}  // namespace lockstep
