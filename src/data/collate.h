#pragma once

#include <lockstep/dataset.h>

#include <span>

namespace lockstep::data {

// Stacks the tensors of the samples `indices`, one example each, at least one. ConfigError
// names the sample that does not fit the first one.
Batch stack(std::span<const Example> examples, std::span<const int64_t> indices);

}  // namespace lockstep::data
