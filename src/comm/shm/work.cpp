#include "comm/shm/work.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

namespace lockstep::comm::shm {
namespace {

const char* name_of(Kind kind) {
  switch (kind) {
    case Kind::kBarrier: return "barrier";
    case Kind::kBroadcast: return "broadcast";
    case Kind::kAllReduce: return "all_reduce";
    case Kind::kReduce: return "reduce";
    case Kind::kAllGather: return "all_gather";
    case Kind::kGather: return "gather";
    case Kind::kScatter: return "scatter";
    case Kind::kReduceScatter: return "reduce_scatter";
    case Kind::kAllToAll: return "all_to_all";
  }
  return "unknown operation";
}

}  // namespace

Signature sign(const Call& call, uint32_t round) {
  return {static_cast<uint64_t>(call.kind) | static_cast<uint64_t>(call.reduction) << 8 |
              static_cast<uint64_t>(static_cast<uint8_t>(call.dtype)) << 16 |
              static_cast<uint64_t>(static_cast<uint8_t>(call.root)) << 24 |
              static_cast<uint64_t>(round) << 32,
          call.numel};
}

Call call_of(const Signature& signature) {
  return {static_cast<Kind>(signature.call & 0xff), static_cast<Reduction>(signature.call >> 8 & 0xff),
          static_cast<c10::ScalarType>(signature.call >> 16 & 0xff),
          static_cast<int>(signature.call >> 24 & 0xff), signature.numel};
}

std::string describe(const Call& call) {
  if (call.kind == Kind::kBarrier) return name_of(call.kind);
  std::string dtype = c10::toString(call.dtype);
  std::transform(dtype.begin(), dtype.end(), dtype.begin(), [](unsigned char c) { return std::tolower(c); });
  const bool to_root = call.kind == Kind::kReduce || call.kind == Kind::kGather;
  const std::string root =
      call.has_root() ? fmt::format(" {} rank {}", to_root ? "to" : "from", call.root) : "";
  const std::string reduction = call.reduces() ? fmt::format("({})", to_string(call.reduction)) : "";
  if (call.kind == Kind::kAllToAll) {  // its sizes may differ between ranks
    return fmt::format("{} of {}", name_of(call.kind), dtype);
  }
  return fmt::format("{}{} of {} {}{}", name_of(call.kind), reduction, call.numel, dtype, root);
}

std::string MessageWork::description() const {
  return fmt::format("{} of {} bytes {} rank {} with tag {}", is_send ? "send" : "recv", bytes,
                     is_send ? "to" : "from", peer, tag);
}

}  // namespace lockstep::comm::shm
