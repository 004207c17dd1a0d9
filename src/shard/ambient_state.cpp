#include "shard/ambient_state.h"

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>

#include <algorithm>
#include <mutex>

namespace lockstep::shard {

namespace {

std::vector<c10::Device> devices_of(const std::vector<at::Tensor>& tensors) {
  std::vector<c10::Device> devices = {c10::Device(c10::DeviceType::CPU)};
  for (const at::Tensor& tensor : tensors) {
    if (!tensor.defined() || tensor.is_meta()) continue;
    if (std::find(devices.begin(), devices.end(), tensor.device()) == devices.end()) {
      devices.push_back(tensor.device());
    }
  }
  return devices;
}

}  // namespace

AmbientState::AmbientState(const std::vector<at::Tensor>& tensors) : AmbientState(devices_of(tensors)) {}

AmbientState::AmbientState(std::vector<c10::Device> devices)
    : autocast_cache_(at::autocast::is_autocast_cache_enabled()) {
  for (const c10::Device device : devices) {
    at::Generator generator = at::globalContext().defaultGenerator(device);
    const std::lock_guard lock(generator.mutex());
    devices_.push_back({device, generator.get_state(), at::autocast::is_autocast_enabled(device.type()),
                        at::autocast::get_autocast_dtype(device.type())});
  }
}

RestoredState::RestoredState(const AmbientState& state)
    : before_([&] {
        std::vector<c10::Device> devices;
        for (const AmbientState::OfDevice& own : state.devices_) devices.push_back(own.device);
        return AmbientState(std::move(devices));
      }()) {
  apply(state);
  // Copies of weights belong to the graph of this computation: none from before it, none
  // for after it.
  const bool is_outermost = at::autocast::increment_nesting() == 1;
  at::autocast::set_autocast_cache_enabled(is_outermost && state.autocast_cache_);
}

RestoredState::~RestoredState() {
  if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
  apply(before_);
  at::autocast::set_autocast_cache_enabled(before_.autocast_cache_);
}

void RestoredState::apply(const AmbientState& state) {
  for (const AmbientState::OfDevice& own : state.devices_) {
    at::Generator generator = at::globalContext().defaultGenerator(own.device);
    {
      const std::lock_guard lock(generator.mutex());
      generator.set_state(own.random);
    }
    at::autocast::set_autocast_dtype(own.device.type(), own.autocast_dtype);
    at::autocast::set_autocast_enabled(own.device.type(), own.autocast);
  }
}

NoAutocastCache::NoAutocastCache() : before_(at::autocast::is_autocast_cache_enabled()) {
  at::autocast::set_autocast_cache_enabled(false);
}

NoAutocastCache::~NoAutocastCache() { at::autocast::set_autocast_cache_enabled(before_); }

}  // namespace lockstep::shard
