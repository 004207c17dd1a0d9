#pragma once

#include <lockstep/sharded.h>
#include <torch/torch.h>

#include "support/formula.h"

namespace lockstep::test {

// A small model of two units and what is around them, with weights that any run begins with.
struct BlockImpl : torch::nn::Module {
  explicit BlockImpl(int64_t width)
      : up(register_module("up", torch::nn::Linear(width, 3 * width))),
        down(register_module("down", torch::nn::Linear(3 * width, width))) {}
  torch::Tensor forward(torch::Tensor x) { return x + down(torch::tanh(up(x))); }
  torch::nn::Linear up, down;
};

struct BlockNetImpl : torch::nn::Module {
  BlockNetImpl()
      : in(register_module("in", torch::nn::Linear(3, 8))),
        first(register_module("first", Sharded<BlockImpl>(8))),
        second(register_module("second", Sharded<BlockImpl>(8))),
        out(register_module("out", torch::nn::Linear(8, 2))) {
    set_parameters(*this);
  }
  torch::Tensor forward(torch::Tensor x) { return out(second(first(torch::tanh(in(x))))); }
  torch::nn::Linear in;
  Sharded<BlockImpl> first, second;
  torch::nn::Linear out;
};
TORCH_MODULE(BlockNet);

}  // namespace lockstep::test
