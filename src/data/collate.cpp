#include "data/collate.h"

#include <ATen/ops/stack.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <lockstep/error.h>

#include <string>

namespace lockstep::data {
namespace {

std::string describe(const at::Tensor& tensor) {
  return fmt::format("{} [{}]", c10::toString(tensor.scalar_type()), fmt::join(tensor.sizes(), ", "));
}

void check_fits(const Example& example, int64_t index, const Example& first, int64_t first_index) {
  if (example.size() != first.size() || example.empty()) {
    throw ConfigError("data",
                      fmt::format("all samples must have the same number of tensors: sample {} has {}, "
                                  "sample {} has {}",
                                  first_index, first.size(), index, example.size()));
  }
  for (size_t i = 0; i < first.size(); ++i) {
    if (!example[i].defined()) {
      throw ConfigError("data",
                        fmt::format("a tensor of a sample is undefined: sample {}, tensor {}", index, i));
    }
    if (example[i].sizes() != first[i].sizes() || example[i].scalar_type() != first[i].scalar_type()) {
      throw ConfigError("data",
                        fmt::format("samples of one batch must have equal shapes and dtypes: tensor {} of "
                                    "sample {} is {}, of sample {} {}",
                                    i, first_index, describe(first[i]), index, describe(example[i])));
    }
  }
}

}  // namespace

Batch stack(std::span<const Example> examples, std::span<const int64_t> indices) {
  for (size_t i = 0; i < examples.size(); ++i) {
    check_fits(examples[i], indices[i], examples[0], indices[0]);
  }
  Batch batch;
  std::vector<at::Tensor> column(examples.size());
  for (size_t i = 0; i < examples[0].size(); ++i) {
    for (size_t j = 0; j < examples.size(); ++j) column[j] = examples[j][i];
    batch.tensors.push_back(at::stack(column));
  }
  return batch;
}

}  // namespace lockstep::data
