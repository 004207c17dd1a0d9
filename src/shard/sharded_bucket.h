#pragma once

#include <ATen/core/Tensor.h>
#include <lockstep/communicator.h>

#include <string>
#include <vector>

#include "grad/bucket_plan.h"
#include "grad/flat_buffer.h"
#include "grad/lent_memory.h"
#include "grad/named_parameter.h"
#include "shard/copy_lane.h"
#include "shard/gather.h"
#include "shard/host_memory.h"

namespace lockstep::shard {

using grad::NamedParameter;

// 16-bit parameters are updated in float32.
bool needs_master(c10::ScalarType dtype);
inline c10::ScalarType master_dtype(c10::ScalarType dtype) {
  return needs_master(dtype) ? c10::ScalarType::Float : dtype;
}

// Where this rank stands among those that share buckets.
struct Place {
  int ranks = 1;
  int rank = 0;
};

// Where a rank keeps its parts. Null: on the device. All outlive the buckets.
struct Homes {
  CopyLane* lane = nullptr;          // of the device; never null
  HostMemory* parameters = nullptr;  // of buckets that are not resident
  HostMemory* masters = nullptr;
  bool masters_leave = false;  // for a file: they are in host memory for a while only
};

// The parameters of one bucket, and this rank's part of them.
//
// A resident bucket is whole on every rank at all times; another one only between
// start_gather() and release().
class ShardedBucket {
 public:
  // Moves the parameters into flat memory on the layout's device. That of a bucket which is
  // not resident is empty until divide().
  ShardedBucket(const grad::BucketLayout& layout, const std::vector<NamedParameter>& parameters,
                const Communicator& communicator, Place place, bool resident, Homes homes);

  // Gives all ranks the values of rank 0, makes this rank's part, and its master where the
  // parameters are 16-bit or the master lives elsewhere. Collective; needs device memory for
  // this bucket alone.
  void divide(grad::LentMemory& memory);
  // Instead of divide(): the parameters have again memory of their own, where it was. The
  // bucket is of no use afterwards.
  void undo();

  const grad::BucketLayout& layout() const { return layout_; }
  const std::vector<NamedParameter>& parameters() const { return parameters_; }  // by layout().slots
  at::IntArrayRef shape(size_t slot) const { return flat_.views[slot].sizes(); }
  bool resident() const { return resident_; }
  // This rank's part in the parameters' dtype, and what the optimizer updates: the same,
  // or float32.
  const at::Tensor& part() const { return part_; }
  const at::Tensor& master() const { return master_; }
  c10::ScalarType master_type() const;
  // Whether the master has digits that the part does not have.
  bool has_master() const { return part_.scalar_type() != master_.scalar_type(); }
  bool is_apart() const { return !master_.is_same(part_); }
  // Both in one memory: the master's update can be written to the part at once.
  bool is_near() const { return part_.device() == master_.device(); }

  // After an update of the master: brings it to the part.
  void take_update();
  // After the part was written: brings it to the master, where it is not what the master
  // rounds to.
  void adopt_part();
  // Starts to give this rank's part to the others where the bucket is resident.
  Work publish();

  // Non-resident: from here on the parameters can be read once the gather is done.
  Gather start_gather(grad::LentMemory& memory);
  bool is_whole() const { return grad::LentMemory::has_memory(flat_.flat); }
  // The parameters' memory goes, and they have no elements; what they held is in the parts.
  void release(grad::LentMemory& memory);
  // Whether somebody may have written whole parameters since they were gathered.
  bool may_be_written() const;
  // Takes this rank's part, and its master, from whole parameters that somebody wrote.
  void adopt_whole();

  // This rank's part of a flat tensor of the bucket's length.
  at::Tensor own_part(const at::Tensor& flat) const;

 private:
  void fill(const std::vector<at::Tensor>& values);
  void show();
  void hide();

  grad::BucketLayout layout_;
  std::vector<NamedParameter> parameters_;
  Communicator communicator_;
  Place place_;
  bool resident_;
  Homes homes_;
  std::vector<at::Tensor> originals_;   // of one that is not resident, until divide()
  std::vector<c10::Device> came_from_;  // until divide()
  grad::FlatBuffer flat_;
  at::Tensor part_;    // in the parameters' dtype; of a resident bucket it is a part of flat_
  at::Tensor master_;  // part_ itself, or float32, or in other memory
};

}  // namespace lockstep::shard
