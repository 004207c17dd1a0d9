#pragma once

#include <c10/core/Device.h>
#include <lockstep/communicator.h>
#include <lockstep/rank_map.h>

#include <utility>

namespace lockstep {

// What a rank knows of its job: who it is, how to reach the others, which device
// is its own. launch() makes it; it lives until the rank's function returns.
class World {
 public:
  World(RankMap map, Communicator communicator, c10::Device device)
      : map_(std::move(map)), communicator_(std::move(communicator)), device_(device) {}
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  int rank() const { return map_.rank; }
  int size() const { return map_.world_size; }
  int local_rank() const { return map_.local_rank; }
  // Rank 0: the one that prints and writes.
  bool is_main() const { return map_.rank == 0; }

  const RankMap& map() const { return map_; }
  const Communicator& communicator() const { return communicator_; }
  c10::Device device() const { return device_; }
  // Which life of the job's ranks this is: 0, 1, ... after a failure, or when nodes came
  // or went. World size and ranks may have changed.
  int generation() const { return map_.generation; }
  // Counts the trainings of this world, from 1, the same on all ranks: each has a run
  // folder of its own.
  int begin_run() { return ++runs_; }

 private:
  RankMap map_;
  Communicator communicator_;
  c10::Device device_;
  int runs_ = 0;
};

}  // namespace lockstep
