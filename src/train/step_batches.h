#pragma once

#include <ATen/core/Tensor.h>
#include <lockstep/dataset.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "train/device_copy.h"

namespace lockstep::train {

// The batches of one step as the loader gave them. Each comes to the device when the step asks
// for it, and leaves when the step asks for another: with many accumulated batches the device
// holds one, and the next one while that is still computed.
class StepBatches {
 public:
  // The copy must outlive it.
  explicit StepBatches(DeviceCopy& copy, std::vector<Batch> batches = {})
      : copy_(&copy), batches_(std::move(batches)) {}

  void clear() {
    batches_.clear();
    current_.reset();
  }
  void add(Batch batch) { batches_.push_back(std::move(batch)); }

  bool empty() const { return batches_.empty(); }
  size_t size() const { return batches_.size(); }
  int64_t samples() const {
    int64_t samples = 0;
    for (const Batch& batch : batches_) samples += batch.size();
    return samples;
  }
  int64_t samples_of(size_t index) const { return batches_[index].size(); }

  // Valid until another one is asked for.
  const Batch& on_device(size_t index) {
    if (!current_ || current_->first != index) {
      current_.reset();  // before the next one takes memory
      current_.emplace(index, (*copy_)(batches_[index]));
    }
    return current_->second;
  }

  // All at once, for who looks at each of them several times.
  std::vector<Batch> all_on_device() {
    std::vector<Batch> all;
    for (size_t i = 0; i < batches_.size(); ++i) all.push_back(on_device(i));
    return all;
  }
  // Others in their place, which may be on the device already.
  StepBatches with(std::vector<Batch> batches) const { return StepBatches(*copy_, std::move(batches)); }

  // Sizes, strides and dtypes of all tensors: equal where the batches are alike but for their
  // values.
  std::vector<int64_t> kind() const {
    std::vector<int64_t> kind;
    for (const Batch& batch : batches_) add_kind(batch, kind);
    return kind;
  }

 private:
  static void add_kind(const Batch& batch, std::vector<int64_t>& kind) {
    kind.push_back(static_cast<int64_t>(batch.tensors.size()));
    for (const at::Tensor& tensor : batch.tensors) {
      kind.push_back(static_cast<int64_t>(tensor.scalar_type()));
      kind.push_back(tensor.dim());
      kind.insert(kind.end(), tensor.sizes().begin(), tensor.sizes().end());
      kind.insert(kind.end(), tensor.strides().begin(), tensor.strides().end());
    }
    kind.push_back(static_cast<int64_t>(batch.parts.size()));
    for (const BatchPart& part : batch.parts) add_kind(part.batch, kind);
  }

  DeviceCopy* copy_;
  std::vector<Batch> batches_;
  std::optional<std::pair<size_t, Batch>> current_;  // on the device, and which one it is
};

}  // namespace lockstep::train
