#include <fmt/format.h>
#include <lockstep/data.h>
#include <lockstep/error.h>

#include <algorithm>

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
    : dataset_size_(dataset_size), options_(options) {
  check_shard(dataset_size, options.rank, options.world_size);
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
  const int64_t remaining = std::max<int64_t>(dataset_size_ - position_, 0);
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
  const uint32_t* order = options_.shuffle ? this->order().data() : nullptr;
  int64_t place = position_ + options_.rank + i * options_.world_size;
  for (int64_t& index : out) {
    // The padding: past the end the order repeats from its start.
    const int64_t wrapped = place < dataset_size_ ? place : place % dataset_size_;
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
  if (state.position < 0 || state.position > dataset_size_) {
    throw ConfigError("data",
                      fmt::format("the saved position lies outside the dataset; was it saved with another "
                                  "one? position={}, samples={}",
                                  state.position, dataset_size_));
  }
  if (state.seed != options_.seed || state.epoch != epoch_) order_.reset();
  options_.seed = state.seed;
  epoch_ = state.epoch;
  position_ = state.position;
}

const std::vector<uint32_t>& DistributedSampler::order() const {
  if (!order_) {
    const uint64_t seed = static_cast<uint64_t>(options_.seed) + static_cast<uint64_t>(epoch_);
    order_ = std::make_shared<const std::vector<uint32_t>>(data::random_permutation(dataset_size_, seed));
  }
  return *order_;
}

EvaluationSampler::EvaluationSampler(int64_t dataset_size, int rank, int world_size) {
  check_shard(dataset_size, rank, world_size);
  const int64_t share = dataset_size / world_size;
  const int64_t larger_blocks = dataset_size % world_size;
  first_ = rank * share + std::min<int64_t>(rank, larger_blocks);
  size_ = share + (rank < larger_blocks ? 1 : 0);
}

}  // namespace lockstep
