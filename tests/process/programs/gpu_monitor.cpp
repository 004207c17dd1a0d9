// Monitors the GPUs into a file until its input ends: gpu_monitor FILE

#include "track/gpu_monitor.h"

#include <cstdio>

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  const lockstep::track::GpuMonitor monitor(argv[1], std::chrono::milliseconds(1));
  while (std::getchar() != EOF) {
  }
  return 0;
}
