#pragma once

#include <ATen/core/Tensor.h>

#include <concepts>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace lockstep {

// The tensors of one sample: by convention the input, then the target, then whatever
// the loss wants beside them.
using Example = std::vector<at::Tensor>;

struct BatchPart;

// The tensors of several samples; the first dimension counts the samples.
struct Batch {
  std::vector<at::Tensor> tensors;
  // Of several loaders by name: a batch of each, and no tensors of its own.
  std::vector<BatchPart> parts;

  // The first and the second tensor. ConfigError: the dataset gives no such one.
  const at::Tensor& data() const;
  const at::Tensor& target() const;
  // The part of this name. ConfigError lists those there are.
  const Batch& operator[](std::string_view name) const;
  // The number of samples: of all parts together, 1 for a batch without data.
  int64_t size() const;
};

struct BatchPart {
  std::string name;
  Batch batch;
};

// Where a sample takes its randomness from (augmentation, noise). The seed of a sample
// depends on the loader's seed, the epoch and the sample's index alone, so that neither
// the number of threads nor the number of ranks changes what a sample looks like.
class SampleSeeds {
 public:
  SampleSeeds(int64_t seed, int64_t epoch);

  uint64_t of(int64_t index) const;

 private:
  uint64_t key_;
};

// Samples by index. A loader with workers calls get and get_batch from several threads
// at once. What they throw reaches the consumer of the loader as a ConfigError that
// names the sample, with the original nested in it.
class Dataset {
 public:
  virtual ~Dataset() = default;

  // Constant while a loader uses the dataset.
  virtual int64_t size() const = 0;

  // One sample, 0 <= index < size(). All samples have the same number of tensors, of
  // the same dtypes and shapes.
  virtual Example get(int64_t index, uint64_t seed) const = 0;

  // The samples of one batch, at least one. By default they come from get() and are
  // stacked; override it where a whole batch is cheaper, or stacks in another way.
  virtual Batch get_batch(std::span<const int64_t> indices, const SampleSeeds& seeds) const;

  // The same in page-locked memory, for a loader that pins; there is a GPU then. By default
  // a copy of get_batch(), of those tensors that are on the CPU; override it where a batch
  // can be written into such memory in the first place.
  virtual Batch get_pinned_batch(std::span<const int64_t> indices, const SampleSeeds& seeds) const;
};

// Tensors in memory: sample i is row i of each. The dataset shares their memory, a
// batch is a copy of its rows.
class TensorDataset : public Dataset {
 public:
  // ConfigError: no tensor, or first dimensions that differ.
  TensorDataset(std::initializer_list<at::Tensor> tensors)
      : TensorDataset(std::vector<at::Tensor>(tensors)) {}
  explicit TensorDataset(std::vector<at::Tensor> tensors);

  int64_t size() const override { return size_; }
  Example get(int64_t index, uint64_t seed) const override;
  Batch get_batch(std::span<const int64_t> indices, const SampleSeeds& seeds) const override;

 private:
  std::vector<at::Tensor> tensors_;
  int64_t size_ = 0;
};

// Samples made by a function of (index) or of (index, seed).
class FunctionDataset : public Dataset {
 public:
  using Function = std::function<Example(int64_t index, uint64_t seed)>;

  // ConfigError: a negative size, or no function.
  FunctionDataset(int64_t size, Function function);
  template <std::invocable<int64_t> F>
  requires(!std::invocable<F, int64_t, uint64_t>) FunctionDataset(int64_t size, F function)
      : FunctionDataset(size, Function([function = std::move(function)](int64_t index, uint64_t) -> Example {
                          return function(index);
                        })) {}

  int64_t size() const override { return size_; }
  Example get(int64_t index, uint64_t seed) const override { return function_(index, seed); }

 private:
  int64_t size_;
  Function function_;
};

}  // namespace lockstep
