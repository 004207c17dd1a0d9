#include "interop/compare_tensors.h"

#include <torch/torch.h>

#include <algorithm>
#include <limits>

namespace lockstep::interop {
namespace {

constexpr int64_t kElementsAtOnce = int64_t{1} << 22;

// A dtype that holds the values of this one and that every operation knows.
at::ScalarType wide(at::ScalarType type) {
  if (c10::isComplexType(type)) return at::kComplexDouble;
  return c10::isFloatingType(type) ? at::kDouble : at::kLong;
}

void compare_part(const at::Tensor& x, const at::Tensor& y, const Tolerance& tolerance,
                  TensorDifference& result) {
  const at::Tensor unequal = x.ne(y).logical_and_(x.isnan().logical_and_(y.isnan()).logical_not_());
  const int64_t elements = unequal.sum().item<int64_t>();
  if (elements == 0) return;
  const at::Tensor a =
      x.masked_select(unequal).to(c10::isComplexType(x.scalar_type()) ? at::kComplexDouble : at::kDouble);
  const at::Tensor b = y.masked_select(unequal).to(a.scalar_type());
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const at::Tensor absolute = (a - b).abs().nan_to_num_(kInfinity, kInfinity, kInfinity);
  const at::Tensor size = b.abs();
  const at::Tensor relative = (absolute / size).nan_to_num_(kInfinity, kInfinity, kInfinity);
  const at::Tensor within =
      absolute.le(size * tolerance.relative + tolerance.absolute).logical_and_(absolute.isfinite());
  result.elements += elements;
  result.out_of_range += elements - within.sum().item<int64_t>();
  result.max_absolute = std::max(result.max_absolute, absolute.max().item<double>());
  result.max_relative = std::max(result.max_relative, relative.max().item<double>());
}

}  // namespace

TensorDifference compare_tensors(const at::Tensor& a, const at::Tensor& b, const Tolerance& tolerance) {
  const torch::NoGradGuard guard;
  const at::ScalarType type = c10::promoteTypes(wide(a.scalar_type()), wide(b.scalar_type()));
  const at::Tensor left = a.reshape({-1});
  const at::Tensor right = b.reshape({-1});
  TensorDifference result;
  for (int64_t first = 0; first < left.numel(); first += kElementsAtOnce) {
    const int64_t count = std::min(kElementsAtOnce, left.numel() - first);
    compare_part(left.narrow(0, first, count).to(type), right.narrow(0, first, count).to(type), tolerance,
                 result);
  }
  return result;
}

}  // namespace lockstep::interop
