#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "report/thinned_table.h"

namespace lockstep::report {

// What a monitor wrote of the GPUs, in nvidia-smi's format.
struct GpuLog {
  struct Gpu {
    std::string index;
    std::string name;
    double memory_gib = 0;  // in all; 0: not told
  };

  std::vector<Gpu> gpus;  // in the order of their first row
  // x: seconds since the first row. Columns: utilization_column() and memory_column().
  ThinnedTable table;
};

std::string utilization_column(const std::string& gpu_index);  // percent
std::string memory_column(const std::string& gpu_index);       // GiB in use

// Reads gpu.csv: the columns timestamp, index, name, utilization.gpu, memory.total and
// memory.used, in any order, among others, with units or without. What cannot be read is
// left out and said in `remarks`; a file that is not there is an empty log.
GpuLog read_gpu_log(const std::filesystem::path& path, std::vector<std::string>& remarks);

}  // namespace lockstep::report
