#pragma once

#include <ATen/core/Tensor.h>
#include <gtest/gtest.h>

#include <vector>

#include "support/formula.h"

namespace lockstep::test {

// As they are now, whatever becomes of the tensors.
inline std::vector<at::Tensor> copies(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> result;
  for (const at::Tensor& tensor : tensors) result.push_back(tensor.detach().clone());
  return result;
}

// Bit for bit.
inline void expect_same(const std::vector<at::Tensor>& actual, const std::vector<at::Tensor>& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) {
    EXPECT_TRUE(same_bits(actual[i], expected[i])) << "parameter " << i;
  }
}

}  // namespace lockstep::test
