#pragma once

#include <ATen/core/Tensor.h>
#include <lockstep/communicator.h>

#include <string>
#include <vector>

namespace lockstep::test {

// The C++ half of tests/numeric/golden/make_ddp_golden.py: the same models, weights,
// data and optimizers, with DataParallel.

// Sets portable_kernels() for this process. Call it before the first tensor operation.
void use_portable_kernels();

// mlp_sgd, mlp_adam, mlp_fused_adam, and the same with cnn.
const std::vector<std::string>& parity_cases();

// Those whose bits are the same on every x86-64 processor: the ones kept as files.
const std::vector<std::string>& portable_parity_cases();

// Trains the case as one of the group's ranks, on one thread. Returns the bytes that the
// script writes: parameters, then floating-point buffers.
std::string train_parity_case(const std::string& name, const Communicator& communicator);

// The same as two ranks in threads; what rank 0 ends with.
std::string train_parity_case(const std::string& name);

}  // namespace lockstep::test
