// Stands in for NVIDIA's management library on a machine without GPUs: three of them,
// GPU-test-0 to GPU-test-2, of which the first does not tell its power and the second not how busy it is. The
// variable FAKE_NVML_SEES, where it is set, names the only one that this process may see. The functions are
// those of nvml.h.

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

int indices[] = {0, 1, 2};
bool is_open = false;

}  // namespace

extern "C" {

int nvmlInit_v2() {
  is_open = true;
  return 0;
}

int nvmlShutdown() {
  is_open = false;
  return 0;
}

int nvmlDeviceGetCount_v2(unsigned* count) {
  *count = std::getenv("FAKE_NVML_SEES") != nullptr ? 1 : 3;
  return is_open ? 0 : 1;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** device) {
  const char* seen = std::getenv("FAKE_NVML_SEES");
  if (!is_open || index > 2) return 1;
  // Of GPU-test-2 the digit.
  *device = &indices[seen != nullptr ? seen[std::strlen(seen) - 1] - '0' : static_cast<int>(index)];
  return 0;
}

int nvmlDeviceGetHandleByUUID(const char* uuid, void** device) {
  constexpr int kNotFound = 6;
  const char* seen = std::getenv("FAKE_NVML_SEES");
  if (!is_open) return 1;
  if (seen != nullptr && std::strcmp(seen, uuid) != 0) return kNotFound;
  for (int& index : indices) {
    char name[32];
    std::snprintf(name, sizeof name, "GPU-test-%d", index);
    *device = &index;
    if (std::strcmp(name, uuid) == 0) return 0;
  }
  return kNotFound;
}

int nvmlDeviceGetMinorNumber(void* device, unsigned* number) {
  *number = static_cast<unsigned>(*static_cast<int*>(device));
  return 0;
}

int nvmlDeviceGetName(void* device, char* name, unsigned length) {
  std::snprintf(name, length, "NVIDIA Test %d", *static_cast<int*>(device));
  return 0;
}

int nvmlDeviceGetUtilizationRates(void* device, unsigned* rates) {
  const int index = *static_cast<int*>(device);
  rates[0] = 97 + static_cast<unsigned>(index);
  rates[1] = 41;
  return index == 1 ? 3 : 0;  // 3: not supported
}

int nvmlDeviceGetMemoryInfo_v2(void* /*device*/, void* memory) {
  struct Info {
    unsigned version;
    unsigned long long total, reserved, free, used;
  };
  auto* info = static_cast<Info*>(memory);
  if (info->version != (sizeof(Info) | (2U << 24))) return 2;
  info->total = 143771ULL << 20;
  info->reserved = 600ULL << 20;
  info->used = (4660ULL << 20) + 4096;
  info->free = info->total - info->reserved - info->used;
  return 0;
}

int nvmlDeviceGetPowerUsage(void* device, unsigned* milliwatts) {
  *milliwatts = 612345;
  return *static_cast<int*>(device) == 0 ? 3 : 0;
}

int nvmlDeviceGetTemperature(void* /*device*/, int sensor, unsigned* celsius) {
  *celsius = 71;
  return sensor == 0 ? 0 : 2;
}

}  // extern "C"
