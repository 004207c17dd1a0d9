#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "support/formula.h"

namespace lockstep::test {

// Expects that an optimizer steps complex parameters as Python's optimizers do: as pairs of real numbers.
// make(parameter) returns the optimizer.
template <typename Make>
void expect_steps_as_pairs(const Make& make) {
  const at::Tensor start = torch::complex(formula({40}, 3), formula({40}, 4));
  const auto complex = start.clone().set_requires_grad(true);
  const auto pairs = torch::view_as_real(start).clone().set_requires_grad(true);
  const auto of_complex = make(complex);
  const auto of_pairs = make(pairs);
  for (int step = 0; step < 5; ++step) {
    const at::Tensor gradient = torch::complex(formula({40}, step), formula({40}, step + 9));
    complex.mutable_grad() = gradient.clone();
    pairs.mutable_grad() = torch::view_as_real(gradient).clone();
    of_complex->step();
    of_pairs->step();
  }
  EXPECT_TRUE(same_bits(torch::view_as_real(complex.detach()), pairs.detach()));
  EXPECT_FALSE(same_bits(complex.detach(), start));
}

}  // namespace lockstep::test
