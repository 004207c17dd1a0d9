#pragma once

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "report/thinned_table.h"

// Readers for the large files of a run's folder: metrics.csv, metrics.jsonl and the GPU logs. The
// files may be damaged or written by another program: unreadable lines are skipped and described
// in `remarks`, one sentence for the report each. No reader throws for the content of a file.
namespace lockstep::report {

// Reads a file line by line. Memory is bounded by kMaxLineBytes, even if the file has no line
// break.
class LineReader {
 public:
  static constexpr size_t kMaxLineBytes = 1 << 20;

  // A path that is not a readable regular file has no lines.
  explicit LineReader(const std::filesystem::path& path);

  bool is_open() const { return file_ != nullptr; }
  // The next complete line, without its line break; false: the end of the file. A longer line
  // than kMaxLineBytes is skipped and counted.
  bool next(std::string& line);
  // Continues with the first line that begins at this offset or later.
  void seek(uint64_t offset_bytes);

  // The number of the line that next() returned, from 1. Undefined after a seek.
  int64_t line_number() const { return line_number_; }
  int64_t too_long() const { return too_long_; }
  // At the end of the file: whether the last line has no line break. Its writer was killed, or
  // the file was truncated.
  bool ends_within_line() const { return ends_within_line_; }

 private:
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };

  // Reads to the end of the line; false: the file ends before it.
  bool read_line(std::string& line, bool& fits);

  std::unique_ptr<std::FILE, Close> file_;
  int64_t line_number_ = 0;
  int64_t too_long_ = 0;
  bool ends_within_line_ = false;
};

// --- metrics ---

// Further columns are skipped, so that a report stays readable and small.
inline constexpr size_t kMaxColumns = 512;

// For each column time_NAME_s, the seconds since the row before, the readers add a column with the
// milliseconds per step: per_step_column(NAME).
std::string per_step_column(const std::string& name);
bool is_per_step_column(const std::string& column);

// Adds the rows of a file of the csv or the jsonl tracker to the table; x is the step. False: the
// file does not exist or has no row.
bool read_metrics_csv(const std::filesystem::path& path, ThinnedTable& table,
                      std::vector<std::string>& remarks);
bool read_metrics_jsonl(const std::filesystem::path& path, ThinnedTable& table,
                        std::vector<std::string>& remarks);

// What metrics.jsonl has and metrics.csv has not.
struct StepTimes {
  std::vector<Point> times;  // (step, seconds since 1970), rising in both
  std::string model;         // the text "model"
};

// Reads a few hundred lines spread over the file, whatever its size. Empty if the file does not
// exist or no tracker wrote it.
StepTimes sample_step_times(const std::filesystem::path& path);

// --- GPU logs ---

// The GPU log of one node, in the format of nvidia-smi.
struct GpuLog {
  struct Gpu {
    std::string index;
    std::string name;
    double memory_gib = 0;  // the total; 0: unknown
  };

  int64_t node = 0;
  std::vector<Gpu> gpus;  // in the order of their first row
  // x: seconds since the first row. Columns: those below.
  ThinnedTable table;
};

std::string utilization_column(const std::string& gpu_index);  // percent
std::string memory_column(const std::string& gpu_index);       // GiB in use
std::string power_column(const std::string& gpu_index);        // watts
std::string temperature_column(const std::string& gpu_index);  // degrees Celsius

// Reads the columns timestamp, index, name, utilization.gpu, memory.total, memory.used, power.draw and
// temperature.gpu, in any order, with or without units; other columns are ignored. A missing file is an empty
// log.
GpuLog read_gpu_log(const std::filesystem::path& path, std::vector<std::string>& remarks);

// The files of the logs of a run by node, also those that do not exist yet: gpu.csv of node 0, gpu_node1.csv
// and so on.
std::map<int64_t, std::filesystem::path> gpu_log_paths(const std::filesystem::path& folder);

// The non-empty logs of a run, in the order of nodes.
std::vector<GpuLog> read_gpu_logs(const std::filesystem::path& folder, std::vector<std::string>& remarks);

}  // namespace lockstep::report
