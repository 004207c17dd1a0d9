#pragma once

// Precompiled once for all sources that use LibTorch: this header costs half a
// minute, the rest of a source a few seconds.

#include <torch/torch.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
