#include "comm/shm/reduce_kernels.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <vector>

namespace lockstep::comm::shm {
namespace {

struct TypePair {
  ElementType element;
  at::ScalarType scalar;
};

const std::vector<TypePair> kTypes = {
    {ElementType::kFloat, at::kFloat}, {ElementType::kDouble, at::kDouble},
    {ElementType::kHalf, at::kHalf},   {ElementType::kBFloat16, at::kBFloat16},
    {ElementType::kInt8, at::kChar},   {ElementType::kInt16, at::kShort},
    {ElementType::kInt32, at::kInt},   {ElementType::kInt64, at::kLong},
    {ElementType::kUint8, at::kByte},  {ElementType::kBool, at::kBool}};

// Reduces into the first source and into one more tensor, and expects both equal.
at::Tensor reduced(Reduction reduction, ElementType type, std::vector<at::Tensor> inputs) {
  std::vector<at::Tensor> sources;
  std::vector<const std::byte*> source_bytes;
  for (const auto& input : inputs) {
    sources.push_back(input.clone());
    source_bytes.push_back(static_cast<const std::byte*>(sources.back().data_ptr()));
  }
  auto other = torch::zeros_like(sources[0]);
  std::byte* destinations[] = {static_cast<std::byte*>(sources[0].data_ptr()),
                               static_cast<std::byte*>(other.data_ptr())};
  reduce({reduction, type, source_bytes.data(), static_cast<int>(inputs.size()), destinations, 2, 0,
          static_cast<size_t>(sources[0].numel())});
  // Bytes, so that NaN equals itself.
  EXPECT_TRUE(sources[0].view(at::kByte).equal(other.view(at::kByte)));
  return other;
}

// The definition, element by element in rank order; 16-bit floats in float.
at::Tensor expected(Reduction reduction, const std::vector<at::Tensor>& inputs) {
  const auto dtype = inputs[0].scalar_type();
  const bool narrow = dtype == at::kHalf || dtype == at::kBFloat16;
  const auto wide = [&](const at::Tensor& tensor) { return narrow ? tensor.to(at::kFloat) : tensor; };
  const auto scaled = [&](const at::Tensor& tensor) {
    return reduction == Reduction::kMean ? wide(tensor) * (1.0 / inputs.size()) : wide(tensor);
  };
  at::Tensor total = scaled(inputs[0]);
  for (size_t i = 1; i < inputs.size(); ++i) {
    const auto next = scaled(inputs[i]);
    switch (reduction) {
      case Reduction::kSum:
      case Reduction::kMean: total = total + next; break;
      case Reduction::kProduct: total = total * next; break;
      case Reduction::kMin: total = torch::minimum(total, next); break;
      case Reduction::kMax: total = torch::maximum(total, next); break;
      case Reduction::kBitAnd: total = torch::bitwise_and(total, next); break;
      case Reduction::kBitOr: total = torch::bitwise_or(total, next); break;
      case Reduction::kBitXor: total = torch::bitwise_xor(total, next); break;
    }
  }
  return total.to(dtype);
}

TEST(ReduceKernels, EveryTypeAndReductionInRankOrder) {
  torch::manual_seed(1);
  for (const auto& [element, scalar] : kTypes) {
    for (auto reduction : {Reduction::kSum, Reduction::kMean, Reduction::kProduct, Reduction::kMin,
                           Reduction::kMax, Reduction::kBitAnd, Reduction::kBitOr, Reduction::kBitXor}) {
      if (!can_reduce(reduction, element)) {
        continue;
      }
      for (int num_sources : {1, 2, 3, 7}) {
        for (int64_t numel : {0, 1, 5, 1024, 2051}) {
          std::vector<at::Tensor> inputs;
          for (int i = 0; i < num_sources; ++i) {
            inputs.push_back(at::isFloatingType(scalar) ? torch::randn({numel}).to(scalar)
                                                        : torch::randint(0, 256, {numel}).to(scalar));
          }
          EXPECT_TRUE(reduced(reduction, element, inputs).equal(expected(reduction, inputs)))
              << to_string(reduction) << " of " << c10::toString(scalar) << ", " << num_sources << " x "
              << numel;
        }
      }
    }
  }
}

TEST(ReduceKernels, EveryHalfSurvivesAndRoundsLikeTorch) {
  const auto all = torch::arange(65536, at::kInt).to(at::kShort).view(at::kHalf);
  const auto finite = all.index({all.isfinite()});
  EXPECT_TRUE(
      reduced(Reduction::kSum, ElementType::kHalf, {finite}).view(at::kShort).equal(finite.view(at::kShort)));
  EXPECT_TRUE(reduced(Reduction::kSum, ElementType::kHalf, {all}).isnan().equal(all.isnan()));
  const auto other = finite.flip(0).roll(77).contiguous();
  EXPECT_TRUE(reduced(Reduction::kSum, ElementType::kHalf, {finite, other})
                  .equal((finite.to(at::kFloat) + other.to(at::kFloat)).to(at::kHalf)));
  // One element at a time takes the path without vectors: it must agree.
  const auto whole = reduced(Reduction::kMean, ElementType::kHalf, {finite, other});
  for (int64_t i = 0; i < finite.numel(); i += 97) {
    const auto one = reduced(Reduction::kMean, ElementType::kHalf,
                             {finite.narrow(0, i, 1).contiguous(), other.narrow(0, i, 1).contiguous()});
    EXPECT_TRUE(one.equal(whole.narrow(0, i, 1))) << i;
  }
}

TEST(ReduceKernels, MinAndMaxPropagateNan) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const auto a = torch::tensor({nan, 1.0F, 2.0F});
  const auto b = torch::tensor({1.0F, nan, 3.0F});
  for (auto reduction : {Reduction::kMin, Reduction::kMax}) {
    const auto result = reduced(reduction, ElementType::kFloat, {a, b});
    EXPECT_TRUE(result.isnan().equal(torch::tensor({true, true, false})));
  }
}

TEST(ReduceKernels, RefusesWhatHasNoMeaning) {
  EXPECT_FALSE(can_reduce(Reduction::kMean, ElementType::kInt64));
  EXPECT_FALSE(can_reduce(Reduction::kBitOr, ElementType::kFloat));
  EXPECT_TRUE(can_reduce(Reduction::kMean, ElementType::kBFloat16));
}

}  // namespace
}  // namespace lockstep::comm::shm
