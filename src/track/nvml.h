#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace lockstep::track {

// What NVIDIA's management library says of a GPU at one moment.
struct GpuSample {
  // N of /dev/nvidiaN. NVML's own index counts the GPUs that a process may see: in a
  // container or a task of Slurm with one GPU it is always 0.
  unsigned index = 0;
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

  // The names of the GPUs that this process may see, in NVML's order.
  std::vector<std::string> names() const;
  // Whether the GPU of this UUID, "GPU-9a8b5d69-...", may be seen by this process.
  bool sees(const std::string& uuid) const;
  // Nothing where the GPU does not answer.
  std::optional<GpuSample> sample(const std::string& uuid) const;

 private:
  struct Library;

  void* find(const std::string& uuid) const;

  explicit Nvml(std::unique_ptr<Library> library);

  std::unique_ptr<Library> library_;
};

}  // namespace lockstep::track
