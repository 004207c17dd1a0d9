#include "train/random_state.h"

#include <lockstep/dataset.h>
#include <torch/torch.h>

#include "train/bytes_tensor.h"

namespace lockstep::train {
namespace {

at::Generator generator_of(c10::Device device) { return at::globalContext().defaultGenerator(device); }

const c10::Device kCpu(c10::DeviceType::CPU);

}  // namespace

std::string random_state(c10::Device device) {
  // Lengths differ from device to device: the CPU's comes first, with its length.
  const std::string cpu = tensor_bytes(generator_of(kCpu).get_state());
  const std::string other = device.is_cpu() ? "" : tensor_bytes(generator_of(device).get_state());
  return std::to_string(cpu.size()) + ":" + cpu + other;
}

void set_random_state(const std::string& state, c10::Device device) {
  const size_t colon = state.find(':');
  const size_t cpu_bytes = std::stoul(state.substr(0, colon));
  generator_of(kCpu).set_state(bytes_tensor(state.substr(colon + 1, cpu_bytes)));
  const std::string other = state.substr(colon + 1 + cpu_bytes);
  if (!device.is_cpu() && !other.empty()) generator_of(device).set_state(bytes_tensor(other));
}

void seed_stream(uint64_t seed, int64_t step, int rank) {
  // The mixing of SampleSeeds: neighbouring steps and ranks get unrelated streams.
  torch::manual_seed(SampleSeeds(static_cast<int64_t>(seed), step).of(rank));
}

}  // namespace lockstep::train
