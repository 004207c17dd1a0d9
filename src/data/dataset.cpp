#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/stack.h>
#include <c10/util/SmallVector.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <lockstep/data.h>
#include <lockstep/error.h>

#include <cstring>
#include <optional>
#include <span>
#include <string>

#include "base/split_mix.h"
#include "data/failure.h"

namespace lockstep {
namespace {

std::string type_and_shape(const at::Tensor& tensor) {
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
      throw ConfigError(
          "data", fmt::format("samples of one batch must have equal shapes and dtypes: tensor {} of "
                              "sample {} is {}, of sample {} {}",
                              i, first_index, type_and_shape(first[i]), index, type_and_shape(example[i])));
    }
  }
}

// Stacks the tensors of the samples `indices`, one example each, at least one. ConfigError
// names the sample that does not fit the first one.
Batch stack_examples(std::span<const Example> examples, std::span<const int64_t> indices) {
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

const at::Tensor& tensor_of(const Batch& batch, size_t i, const char* name) {
  if (batch.tensors.size() <= i) {
    throw ConfigError("data", fmt::format("the dataset gives no {}: its batches have {} tensors", name,
                                          batch.tensors.size()));
  }
  return batch.tensors[i];
}

// index_select costs several microseconds for any size, as much as a step of a small model;
// copying the rows costs one.
at::Tensor copy_rows(const at::Tensor& tensor, std::span<const int64_t> indices) {
  c10::SmallVector<int64_t, 5> shape(tensor.sizes().begin(), tensor.sizes().end());
  shape[0] = static_cast<int64_t>(indices.size());
  at::Tensor out = at::empty(shape, tensor.options());
  const size_t row_bytes = tensor.nbytes() / static_cast<size_t>(tensor.size(0));
  if (row_bytes == 0) return out;  // such tensors may have no memory, which memcpy() does not accept
  const auto* source = static_cast<const char*>(tensor.const_data_ptr());
  auto* target = static_cast<char*>(out.mutable_data_ptr());
  for (const int64_t index : indices) {
    std::memcpy(target, source + static_cast<size_t>(index) * row_bytes, row_bytes);
    target += row_bytes;
  }
  return out;
}

at::Tensor select_rows(const at::Tensor& tensor, std::span<const int64_t> indices) {
  if (tensor.layout() == at::kStrided && tensor.device().is_cpu() && tensor.is_contiguous()) {
    return copy_rows(tensor, indices);
  }
  const at::Tensor rows =
      at::from_blob(const_cast<int64_t*>(indices.data()), {static_cast<int64_t>(indices.size())}, at::kLong);
  return tensor.index_select(0, rows.to(tensor.device()));
}

}  // namespace

const Batch& Batch::operator[](std::string_view name) const {
  std::vector<std::string_view> known;
  for (const BatchPart& part : parts) {
    if (part.name == name) return part.batch;
    known.push_back(part.name);
  }
  throw ConfigError("data", fmt::format("the batch has no part '{}': it has {}", name,
                                        known.empty() ? "none" : fmt::format("{}", fmt::join(known, ", "))));
}

int64_t Batch::size() const {
  if (!tensors.empty()) return tensors.front().size(0);
  if (parts.empty()) return 1;
  int64_t samples = 0;
  for (const BatchPart& part : parts) samples += part.batch.size();
  return samples;
}

const at::Tensor& Batch::data() const { return tensor_of(*this, 0, "data"); }

const at::Tensor& Batch::target() const { return tensor_of(*this, 1, "target"); }

SampleSeeds::SampleSeeds(int64_t seed, int64_t epoch)
    : key_(base::split_mix(base::split_mix(static_cast<uint64_t>(seed)) ^ static_cast<uint64_t>(epoch))) {}

uint64_t SampleSeeds::of(int64_t index) const { return base::split_mix(key_ ^ static_cast<uint64_t>(index)); }

Batch Dataset::get_batch(std::span<const int64_t> indices, const SampleSeeds& seeds) const {
  std::vector<Example> examples;
  examples.reserve(indices.size());
  for (const int64_t index : indices) {
    try {
      examples.push_back(get(index, seeds.of(index)));
    } catch (...) {
      data::rethrow_as_config_error(fmt::format("the dataset failed at sample {}", index));
    }
  }
  return stack_examples(examples, indices);
}

Batch Dataset::get_pinned_batch(std::span<const int64_t> indices, const SampleSeeds& seeds) const {
  Batch batch = get_batch(indices, seeds);
  for (at::Tensor& tensor : batch.tensors) {
    if (tensor.is_cpu()) tensor = tensor.pin_memory();
  }
  return batch;
}

namespace {

// Reads a stream from its begin to its end, and skips the samples of other ranks. Opens it again for a
// sample that it has passed: the padding at the end of an epoch is samples from its start.
class StreamReader final : public Dataset {
 public:
  explicit StreamReader(const StreamDataset& dataset) : dataset_(dataset) {}

  int64_t size() const override { return dataset_.size(); }

  Example get(int64_t index, uint64_t seed) const override {
    if (!stream_ || index < next_ || seed != seed_) {
      stream_ = dataset_.open(seed);
      seed_ = seed;
      next_ = 0;
    }
    if (index > next_) stream_->skip(index - next_);
    std::optional<Example> example = stream_->next();
    next_ = index + 1;
    if (!example) {
      throw ConfigError("data", fmt::format("the stream ended before sample {}, and its size is {}", index,
                                            dataset_.size()));
    }
    return std::move(*example);
  }

  Batch get_batch(std::span<const int64_t> indices, const SampleSeeds& seeds) const override {
    const uint64_t seed = seeds.of(0);  // of the epoch
    std::vector<Example> examples;
    for (const int64_t index : indices) {
      try {
        examples.push_back(get(index, seed));
      } catch (const ConfigError&) {
        throw;
      } catch (...) {
        stream_.reset();  // its place is not known
        data::rethrow_as_config_error(fmt::format("the stream failed at sample {}", index));
      }
    }
    return stack_examples(examples, indices);
  }

 private:
  const StreamDataset& dataset_;
  mutable std::unique_ptr<StreamDataset::Stream> stream_;
  mutable uint64_t seed_ = 0;
  mutable int64_t next_ = 0;  // index of the sample that the stream gives next
};

}  // namespace

void StreamDataset::Stream::skip(int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    if (!next()) return;
  }
}

Example StreamDataset::get(int64_t index, uint64_t seed) const {
  return StreamReader(*this).get(index, seed);
}

std::shared_ptr<const Dataset> StreamDataset::open_reader() const {
  return std::make_shared<StreamReader>(*this);
}

TensorDataset::TensorDataset(std::vector<at::Tensor> tensors) : tensors_(std::move(tensors)) {
  std::vector<int64_t> sizes;
  for (at::Tensor& tensor : tensors_) {
    if (!tensor.defined() || tensor.dim() == 0) {
      throw ConfigError("data",
                        fmt::format("a TensorDataset needs tensors with a first dimension: tensor {} is {}",
                                    sizes.size(), tensor.defined() ? "a scalar" : "undefined"));
    }
    sizes.push_back(tensor.size(0));
    tensor = tensor.detach().resolve_conj().resolve_neg();  // copy_rows copies bytes: they must be the values
  }
  if (sizes.empty()) throw ConfigError("data", "a TensorDataset needs at least one tensor");
  size_ = sizes[0];
  for (const int64_t size : sizes) {
    if (size == size_) continue;
    throw ConfigError("data",
                      fmt::format("the tensors of a TensorDataset must have equal first dimensions: {}",
                                  fmt::join(sizes, ", ")));
  }
}

Example TensorDataset::get(int64_t index, uint64_t /*seed*/) const {
  Example example;
  for (const at::Tensor& tensor : tensors_) example.push_back(tensor[index]);
  return example;
}

Batch TensorDataset::get_batch(std::span<const int64_t> indices, const SampleSeeds& /*seeds*/) const {
  for (const int64_t index : indices) {
    if (index < 0 || index >= size_) {
      throw ConfigError("data", fmt::format("no such sample: index={}, samples={}", index, size_));
    }
  }
  Batch batch;
  batch.tensors.reserve(tensors_.size());
  for (const at::Tensor& tensor : tensors_) batch.tensors.push_back(select_rows(tensor, indices));
  return batch;
}

FunctionDataset::FunctionDataset(int64_t size, Function function)
    : size_(size), function_(std::move(function)) {
  if (size < 0) throw ConfigError("data", fmt::format("a dataset cannot have a negative size: {}", size));
  if (!function_) throw ConfigError("data", "a FunctionDataset needs a function");
}

}  // namespace lockstep
