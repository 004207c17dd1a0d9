#pragma once

#include <c10/core/ScalarType.h>

#include <string>

#include "comm/shm/layout.h"
#include "comm/shm/reduce_kernels.h"

namespace lockstep::comm::shm {

enum class Kind : uint8_t {
  kBarrier,
  kBroadcast,
  kAllReduce,
  kReduce,
  kAllGather,
  kGather,
  kScatter,
  kReduceScatter,
  kAllToAll
};

// What a rank asks for; the same on all ranks.
struct Call {
  Kind kind = Kind::kBarrier;
  Reduction reduction = Reduction::kSum;  // where the kind reduces
  c10::ScalarType dtype = c10::ScalarType::Byte;
  int root = 0;  // where the kind has one
  uint64_t numel = 0;

  bool reduces() const {
    return kind == Kind::kAllReduce || kind == Kind::kReduce || kind == Kind::kReduceScatter;
  }
  bool has_root() const {
    return kind == Kind::kBroadcast || kind == Kind::kReduce || kind == Kind::kGather ||
           kind == Kind::kScatter;
  }
};

Signature sign(const Call& call, uint32_t round);
Call call_of(const Signature& signature);

// "all_reduce(sum) of 16 float", "broadcast of 8 long from rank 0", "barrier".
std::string describe(const Call& call);

}  // namespace lockstep::comm::shm
