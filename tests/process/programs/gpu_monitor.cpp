// Monitors a GPU into a file until its input ends: gpu_monitor FILE UUID

#include "track/gpu_monitor.h"

#include <cstdio>

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const lockstep::track::GpuMonitor monitor(argv[1], argv[2], std::chrono::milliseconds(1));
  std::puts("monitoring");
  std::fflush(stdout);
  while (std::getchar() != EOF) {
  }
  return 0;
}
