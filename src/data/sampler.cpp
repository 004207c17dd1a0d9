#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Generator.h>
#include <ATen/ops/multinomial.h>
#include <ATen/ops/tensor.h>
#include <fmt/format.h>
#include <lockstep/data.h>
#include <lockstep/error.h>

#include <algorithm>
#include <cmath>

#include "data/permutation.h"

namespace lockstep {
namespace {

void check_shard(int64_t dataset_size, int rank, int world_size) {
  if (dataset_size < 0) {
    throw ConfigError("data", fmt::format("a dataset cannot have a negative size: {}", dataset_size));
  }
  if (world_size < 1 || rank < 0 || rank >= world_size) {
    throw ConfigError(
        "data", fmt::format("the rank must be in [0, world_size): rank={}, world_size={}", rank, world_size));
  }
}

void check_range(int64_t first, int64_t count, int64_t size) {
  if (first < 0 || count < 0 || first > size - count) {
    throw ConfigError("data",
                      fmt::format("the sampler has fewer samples left in this epoch: {} from the {}th on "
                                  "were asked for, of {}",
                                  count, first, size));
  }
}

}  // namespace

DistributedSampler::DistributedSampler(int64_t dataset_size, const SamplerOptions& options)
    : dataset_size_(dataset_size),
      length_(options.order ? options.order->size : dataset_size),
      options_(options) {
  check_shard(dataset_size, options.rank, options.world_size);
  if (options.order && options.shuffle) throw ConfigError("data", "order and shuffle exclude each other");
  if (options.order && (!options.order->draw || length_ < 0)) {
    throw ConfigError("data", fmt::format("an order needs a function and a size of at least 0: {}", length_));
  }
  if (options.order && std::max(dataset_size, length_) > data::kMaxPermutationSize) {
    throw ConfigError("data", fmt::format("too many samples for an order: {}, at most {}",
                                          std::max(dataset_size, length_), data::kMaxPermutationSize));
  }
  if (options.shuffle && dataset_size > data::kMaxPermutationSize) {
    throw ConfigError("data",
                      fmt::format("too many samples to shuffle; split the dataset, or set shuffle=false: "
                                  "{} samples, at most {}",
                                  dataset_size, data::kMaxPermutationSize));
  }
}

void DistributedSampler::set_epoch(int64_t epoch) {
  if (epoch != epoch_) order_.reset();
  epoch_ = epoch;
  position_ = 0;
}

int64_t DistributedSampler::size() const {
  const int64_t remaining = std::max<int64_t>(length_ - position_, 0);
  const int64_t world_size = options_.world_size;
  const bool one_more = !options_.drop_last && remaining % world_size != 0;
  return remaining / world_size + (one_more ? 1 : 0);
}

int64_t DistributedSampler::index(int64_t i) const {
  int64_t out = 0;
  read(i, {&out, 1});
  return out;
}

void DistributedSampler::read(int64_t i, std::span<int64_t> out) const {
  check_range(i, static_cast<int64_t>(out.size()), size());
  const uint32_t* order = has_order() ? this->order().data() : nullptr;
  int64_t place = position_ + options_.rank + i * options_.world_size;
  for (int64_t& index : out) {
    // The padding: past the end the order repeats from its start.
    const int64_t wrapped = place < length_ ? place : place % length_;
    index = order == nullptr ? wrapped : order[wrapped];
    place += options_.world_size;
  }
}

std::vector<int64_t> DistributedSampler::indices() const {
  std::vector<int64_t> out(static_cast<size_t>(size()));
  read(0, out);
  return out;
}

SamplerState DistributedSampler::state_after(int64_t k) const {
  check_range(0, k, size());
  if (k == size()) return {options_.seed, epoch_ + 1, 0};
  return {options_.seed, epoch_, position_ + k * options_.world_size};
}

void DistributedSampler::load_state(const SamplerState& state) {
  if (state.position < 0 || state.position > length_) {
    throw ConfigError("data",
                      fmt::format("the saved position lies outside the dataset; was it saved with another "
                                  "one? position={}, samples={}",
                                  state.position, length_));
  }
  if (state.seed != options_.seed || state.epoch != epoch_) order_.reset();
  options_.seed = state.seed;
  epoch_ = state.epoch;
  position_ = state.position;
}

const std::vector<uint32_t>& DistributedSampler::order() const {
  if (!order_) {
    order_ = std::make_shared<const std::vector<uint32_t>>(draw_order());
  }
  return *order_;
}

std::vector<uint32_t> DistributedSampler::draw_order() const {
  if (!options_.order) {
    const uint64_t seed = static_cast<uint64_t>(options_.seed) + static_cast<uint64_t>(epoch_);
    return data::random_permutation(dataset_size_, seed);
  }
  const std::vector<int64_t> drawn = options_.order->draw(options_.seed, epoch_);
  if (static_cast<int64_t>(drawn.size()) != length_) {
    throw ConfigError("data", fmt::format("the order of epoch {} has {} samples, and its size is {}", epoch_,
                                          drawn.size(), length_));
  }
  std::vector<uint32_t> order;
  order.reserve(drawn.size());
  for (const int64_t index : drawn) {
    if (index < 0 || index >= dataset_size_) {
      throw ConfigError(
          "data", fmt::format("the order of epoch {} has sample {}, and the data set {} samples", epoch_,
                              index, dataset_size_));
    }
    order.push_back(static_cast<uint32_t>(index));
  }
  return order;
}

EpochOrder weighted_order(const std::vector<double>& weights, int64_t size, bool replacement) {
  int64_t positive = 0;
  for (size_t i = 0; i < weights.size(); ++i) {
    if (!std::isfinite(weights[i]) || weights[i] < 0) {
      throw ConfigError(
          "data", fmt::format("a weight must be a number of at least 0: weight {} is {}", i, weights[i]));
    }
    positive += weights[i] > 0 ? 1 : 0;
  }
  if (positive == 0) throw ConfigError("data", "weighted_order() needs a weight above 0");
  if (size < 1 || (!replacement && size > positive)) {
    throw ConfigError("data", fmt::format("weighted_order() cannot draw {} samples of {} weights above 0{}",
                                          size, positive, replacement ? "" : " without replacement"));
  }
  const at::Tensor probabilities = at::tensor(weights, at::kDouble);
  return {.size = size, .draw = [probabilities, size, replacement](int64_t seed, int64_t epoch) {
            at::Generator generator = at::detail::createCPUGenerator();
            generator.set_current_seed(static_cast<uint64_t>(seed) + static_cast<uint64_t>(epoch));
            const at::Tensor drawn = at::multinomial(probabilities, size, replacement, generator);
            const auto* indices = drawn.const_data_ptr<int64_t>();
            return std::vector<int64_t>(indices, indices + size);
          }};
}

EvaluationSampler::EvaluationSampler(int64_t dataset_size, int rank, int world_size) {
  check_shard(dataset_size, rank, world_size);
  const int64_t share = dataset_size / world_size;
  const int64_t larger_blocks = dataset_size % world_size;
  first_ = rank * share + std::min<int64_t>(rank, larger_blocks);
  size_ = share + (rank < larger_blocks ? 1 : 0);
}

}  // namespace lockstep
