#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

namespace lockstep::parallel {

// The norm of all gradients together: a scalar on the device of the first one, in its dtype or, with
// `at_least`, in the wider of both. norm_type may be infinity.
at::Tensor total_norm(const std::vector<at::Tensor>& gradients, double norm_type,
                      std::optional<c10::ScalarType> at_least = {});

// Scales the gradients so that their norm, now `total`, is at most max_norm. Waits for no device.
void limit_norm(const std::vector<at::Tensor>& gradients, const at::Tensor& total, double max_norm);

}  // namespace lockstep::parallel
