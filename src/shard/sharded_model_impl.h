#pragma once

#include <lockstep/data_parallel.h>
#include <lockstep/sharded_model.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "grad/bucket_plan.h"
#include "shard/bucket_gatherer.h"
#include "shard/copy_lane.h"
#include "shard/host_memory.h"
#include "shard/nvme_states.h"
#include "shard/part_gradients.h"
#include "shard/part_optimizer.h"
#include "shard/sharded_bucket.h"
#include "shard/sharded_state.h"
#include "shard/unit_schedule.h"

namespace lockstep {

struct ShardedModel::Impl {
  Impl(std::shared_ptr<torch::nn::Module> module, torch::optim::Optimizer& optimizer,
       Communicator communicator, ShardedOptions options);
  ~Impl();

  bool has_transient_gradients() const { return options.stage >= 2; }
  bool offloads_optimizer() const { return options.offload_optimizer.device != OffloadDevice::kNone; }
  bool is_nvme() const { return options.offload_optimizer.device == OffloadDevice::kNvme; }
  bool offloads_parameters() const { return options.offload_param.device != OffloadDevice::kNone; }

  void make_homes(const std::vector<shard::NamedParameter>& parameters);
  std::unique_ptr<shard::NvmeStates> make_file() const;
  void make_buckets(const std::vector<shard::NamedParameter>& parameters, const std::vector<int>& groups);
  void make_sync();
  void attach_units();
  PendingReduction reduce(const GradientBucket& bucket);
  // Adds what this rank owns of the parameters of one bucket; `set` is given each without content,
  // and where it lies in the bucket's part.
  using SetContent = std::function<void(Part& part, int64_t offset, int64_t count)>;
  void add_parts(size_t bucket, const SetContent& set, std::vector<Part>& parts) const;
  shard::StateView state_view() const { return {optimizer, buckets, items, place, group_names, *updates}; }

  const std::shared_ptr<torch::nn::Module> module;
  torch::optim::Optimizer& optimizer;
  const Communicator communicator;
  const ShardedOptions options;
  const shard::Place place;

  c10::Device device{c10::kCPU};
  std::unique_ptr<shard::CopyLane> lane;
  std::unique_ptr<shard::HostMemory> host_states;      // masters
  std::unique_ptr<shard::HostMemory> host_copies;      // gradients and what goes to the device
  std::unique_ptr<shard::HostMemory> host_parameters;  // of buckets that are not resident

  std::vector<grad::BucketItem> items;
  std::vector<shard::ShardedBucket> buckets;
  std::vector<std::vector<std::string>> group_names;
  std::vector<int> group_of;    // of each bucket
  std::vector<size_t> unit_of;  // of each bucket
  std::vector<shard::Unit*> units;
  std::unique_ptr<shard::BucketGatherer> gatherer;
  std::unique_ptr<shard::UnitSchedule> schedule;
  std::unique_ptr<GradientSync> sync;

  std::unique_ptr<shard::PartGradients> gradients;
  std::unique_ptr<shard::PartOptimizer> updates;
};

}  // namespace lockstep
