#pragma once

#include <ATen/core/Tensor.h>
#include <lockstep/communicator.h>

#include <string>
#include <vector>

#include "parallel/bucket_plan.h"
#include "parallel/flat_buffer.h"
#include "parallel/offload.h"

namespace lockstep::parallel {

// 16-bit parameters are updated in float32.
bool needs_master(c10::ScalarType dtype);
inline c10::ScalarType master_dtype(c10::ScalarType dtype) {
  return needs_master(dtype) ? c10::ScalarType::Float : dtype;
}

// This rank among those that shard buckets.
struct Place {
  int ranks = 1;
  int rank = 0;
};

// Where a rank keeps its shards. Null: on the device. All outlive the buckets.
struct Homes {
  CopyLane* lane = nullptr;          // of the device; never null
  HostMemory* parameters = nullptr;  // of buckets that are not resident
  HostMemory* masters = nullptr;
  bool masters_go_to_file = false;  // they are in host memory only during a step
};

// The parameters of one bucket, and this rank's shard of them.
//
// A resident bucket is whole on every rank at all times. Any other bucket is whole only between
// start_gather() and release().
class ShardedBucket {
 public:
  // Moves the parameters into flat memory on the layout's device. A bucket that is not resident has no
  // memory until make_shard().
  ShardedBucket(const BucketLayout& layout, const std::vector<NamedParameter>& parameters,
                const Communicator& communicator, Place place, bool resident, Homes homes);

  // Broadcasts the values of rank 0 and makes this rank's shard, and a separate master if the
  // parameters are 16-bit or the master is offloaded. Collective; needs device memory for this bucket
  // alone.
  void make_shard(LentMemory& memory);
  // Instead of make_shard(): gives the parameters separate memory on their original device. The bucket
  // is unusable afterwards.
  void undo();

  const BucketLayout& layout() const { return layout_; }
  const std::vector<NamedParameter>& parameters() const { return parameters_; }  // by layout().slots
  at::IntArrayRef shape(size_t slot) const { return flat_.views[slot].sizes(); }
  bool resident() const { return resident_; }
  // This rank's shard in the parameters' dtype, and the tensor that the optimizer updates: the same one,
  // or a separate one in float32 or in host memory.
  const at::Tensor& shard() const { return shard_; }
  const at::Tensor& master() const { return master_; }
  c10::ScalarType master_type() const;
  bool has_separate_master() const { return !master_.is_same(shard_); }
  // Whether the master has digits that the shard does not have.
  bool is_master_wider() const { return shard_.scalar_type() != master_.scalar_type(); }
  // Whether both are on one device: an update of the master can be written to the shard at once.
  bool is_master_on_device() const { return shard_.device() == master_.device(); }

  // After an update of the master: copies it to the shard.
  void update_shard();
  // After the shard was written: copies it to the master, except elements that the master rounds to.
  void update_master();
  // Resident: starts to send this rank's shard to the other ranks.
  Work publish();

  // Not resident: the parameters can be read once the gather is done.
  Gather start_gather(LentMemory& memory);
  // Returns the parameters' memory: they have no elements then. Their values are in the shards.
  void release(LentMemory& memory);
  // Whether gathered parameters may have been written.
  bool may_be_written() const;
  // Sets this rank's shard, and its master, from gathered parameters that were written.
  void adopt_gathered();

  // This rank's shard of a flat tensor of the bucket's length.
  at::Tensor own_shard(const at::Tensor& flat) const;

 private:
  void fill(const std::vector<at::Tensor>& values);
  // Parameters refer to the flat memory, or to nothing.
  void show();
  void hide();

  BucketLayout layout_;
  std::vector<NamedParameter> parameters_;
  Communicator communicator_;
  Place place_;
  bool resident_;
  Homes homes_;
  std::vector<at::Tensor> originals_;          // not resident: until make_shard()
  std::vector<c10::Device> original_devices_;  // until make_shard()
  FlatBuffer flat_;
  at::Tensor shard_;   // in the parameters' dtype; of a resident bucket a view of flat_
  at::Tensor master_;  // shard_ itself, or float32, or in other memory
};

}  // namespace lockstep::parallel
