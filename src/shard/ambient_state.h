#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <vector>

namespace lockstep::shard {

// What a computation depends on besides its arguments: the states of the default random
// generators, of the CPU and of these devices, and autocast on them. As it is now, to
// compute the same again later.
class AmbientState {
 public:
  // `tensors` tell the devices; undefined ones are passed over.
  explicit AmbientState(const std::vector<at::Tensor>& tensors);

 private:
  friend class RestoredState;
  explicit AmbientState(std::vector<c10::Device> devices);

  struct OfDevice {
    c10::Device device;
    at::Tensor random;
    bool autocast = false;
    c10::ScalarType autocast_dtype = c10::ScalarType::Undefined;
  };
  std::vector<OfDevice> devices_;
  bool autocast_cache_ = true;
};

// Brings such a state back while it lives, and then what it has replaced. One thread.
class RestoredState {
 public:
  explicit RestoredState(const AmbientState& state);
  ~RestoredState();
  RestoredState(const RestoredState&) = delete;
  RestoredState& operator=(const RestoredState&) = delete;

 private:
  static void apply(const AmbientState& state);

  const AmbientState before_;
};

// Autocast keeps no copies of weights while it lives: those made without gradients would
// be taken later, where gradients must pass.
class NoAutocastCache {
 public:
  NoAutocastCache();
  ~NoAutocastCache();
  NoAutocastCache(const NoAutocastCache&) = delete;
  NoAutocastCache& operator=(const NoAutocastCache&) = delete;

 private:
  const bool before_;
};

}  // namespace lockstep::shard
