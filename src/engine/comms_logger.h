#pragma once

#include <lockstep/communicator.h>
#include <lockstep/deepspeed_config.h>

#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "comm/call_observer.h"

namespace lockstep::engine {

// comms_logger of a configuration: times of the collectives of an engine's group, by
// operation and size. Every call is kept (4 bytes), for means without the extremes. Told by
// any thread.
class CommsLogger final : public comm::CallObserver {
 public:
  // `ranks`: of the group; bandwidths depend on it. `speaks`: whether it logs.
  CommsLogger(const DeepSpeedConfig::CommsLogger& options, int ranks, bool speaks);

  // With comms_logger.debug calls are told apart by the phase of the step they are from.
  void enter(const char* phase);
  void called(const comm::Call& call) override;

  // A line for each operation and size.
  void log_summary() const;
  // The same by how long the last rank let the others wait: what a call took longer here
  // than where it took least. Collective.
  void log_stragglers(const Communicator& group) const;

 private:
  struct Record {
    std::vector<float> milliseconds;
    std::string_view operation;
  };
  using Records = std::map<std::pair<std::string, int64_t>, Record>;  // by name and bytes

  Records records() const;
  bool is_wanted(std::string_view operation) const;

  const DeepSpeedConfig::CommsLogger options_;
  const int ranks_;
  const bool speaks_;
  mutable std::mutex mutex_;
  const char* phase_ = "outside";
  Records records_;
};

}  // namespace lockstep::engine
