#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace lockstep::track {

// What NVIDIA's management library says of a GPU at one moment.
struct GpuSample {
  unsigned index = 0;  // among the GPUs of the machine, as nvidia-smi counts them
  std::string name;
  unsigned gpu_percent = 0;     // share of the last period in which a kernel ran
  unsigned memory_percent = 0;  // share in which memory was read or written
  uint64_t total_bytes = 0;
  uint64_t used_bytes = 0;
};

// NVIDIA's management library, which comes with the driver: loaded when it is asked for,
// so that nothing links it. One thread at a time.
class Nvml {
 public:
  // nullptr: there is no such library, or no driver; `reason` then says which.
  static std::unique_ptr<Nvml> load(std::string& reason);
  ~Nvml();
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;

  // One sample of each GPU of the machine; a GPU that does not answer is left out.
  std::vector<GpuSample> sample() const;

 private:
  struct Library;

  explicit Nvml(std::unique_ptr<Library> library);

  std::unique_ptr<Library> library_;
};

}  // namespace lockstep::track
