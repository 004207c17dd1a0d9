#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "report/thinned_table.h"

namespace lockstep::report {

// What a monitor wrote of one node's GPUs, in nvidia-smi's format.
struct GpuLog {
  struct Gpu {
    std::string index;
    std::string name;
    double memory_gib = 0;  // in all; 0: not told
  };

  int64_t node = 0;
  std::vector<Gpu> gpus;  // in the order of their first row
  // x: seconds since the first row. Columns: utilization_column() and memory_column().
  ThinnedTable table;
};

std::string utilization_column(const std::string& gpu_index);  // percent
std::string memory_column(const std::string& gpu_index);       // GiB in use

// Reads a node's log: the columns timestamp, index, name, utilization.gpu, memory.total and
// memory.used, in any order, among others, with units or without. What cannot be read is
// left out and said in `remarks`; a file that is not there is an empty log.
GpuLog read_gpu_log(const std::filesystem::path& path, std::vector<std::string>& remarks);

// The logs of a run's nodes: gpu.csv, and gpu_node1.csv and so on where there are further
// ones, in the order of nodes. Without logs that tell nothing.
std::vector<GpuLog> read_gpu_logs(const std::filesystem::path& folder, std::vector<std::string>& remarks);

}  // namespace lockstep::report
