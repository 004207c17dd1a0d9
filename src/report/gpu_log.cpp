#include "report/gpu_log.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <ctime>
#include <map>
#include <optional>
#include <string_view>
#include <system_error>
#include <utility>

#include "base/number.h"
#include "report/line_reader.h"
#include "track/csv_line.h"

namespace lockstep::report {
namespace {

constexpr double kMibPerGib = 1024;
constexpr size_t kMaxGpus = 64;

std::string_view trimmed(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t") - begin + 1);
}

// Columns by what they hold; a header may have units: "memory.used [MiB]".
struct Layout {
  std::optional<size_t> timestamp, index, name, utilization, total, used;

  explicit Layout(std::string_view header) {
    const std::vector<std::string> fields = track::csv_fields(header);
    for (size_t i = 0; i < fields.size(); ++i) {
      const std::string_view field = trimmed(fields[i]);
      const std::string_view column = field.substr(0, field.find(' '));
      if (column == "timestamp") timestamp = i;
      if (column == "index") index = i;
      if (column == "name") name = i;
      if (column == "utilization.gpu") utilization = i;
      if (column == "memory.total") total = i;
      if (column == "memory.used") used = i;
    }
  }

  bool is_usable() const { return timestamp && index && (utilization || used); }
};

// "45", "45 %", "1234 MiB"; "[N/A]" is none.
std::optional<double> number_of(const std::vector<std::string>& fields, std::optional<size_t> column) {
  if (!column || *column >= fields.size()) return std::nullopt;
  const std::string_view text = trimmed(fields[*column]);
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc()) return std::nullopt;
  return value;
}

// "2026/11/15 12:30:35.123", "2026-11-15T12:30:35" or seconds. Only differences count, so
// that the time zone does not.
std::optional<double> seconds_of(const std::string& text) {
  std::tm time{};
  double seconds = 0;
  char separator = 0;
  if (std::sscanf(text.c_str(), " %d%*1[/-]%d%*1[/-]%d%c%d:%d:%lf", &time.tm_year, &time.tm_mon,
                  &time.tm_mday, &separator, &time.tm_hour, &time.tm_min, &seconds) == 7) {
    time.tm_year -= 1900;
    time.tm_mon -= 1;
    return static_cast<double>(::timegm(&time)) + seconds;
  }
  const std::string_view number = trimmed(text);
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), seconds);
  if (error != std::errc() || end != number.data() + number.size()) return std::nullopt;
  return seconds;
}

class LogBuilder {
 public:
  explicit LogBuilder(const Layout& layout) : layout_(layout) {}

  // False: no row of the log.
  bool add(const std::vector<std::string>& fields) {
    if (fields.size() <= std::max(*layout_.timestamp, *layout_.index)) return false;
    const auto seconds = seconds_of(fields[*layout_.timestamp]);
    const std::string index(trimmed(fields[*layout_.index]));
    if (!seconds || index.empty()) return false;
    if (!start_) start_ = seconds;
    GpuLog::Gpu* gpu = find(index);
    if (gpu == nullptr) return false;
    if (layout_.name && *layout_.name < fields.size()) gpu->name = trimmed(fields[*layout_.name]);
    if (const auto total = number_of(fields, layout_.total)) gpu->memory_gib = *total / kMibPerGib;
    log_.table.begin_row(*seconds - *start_);
    if (const auto utilization = number_of(fields, layout_.utilization)) {
      log_.table.add(log_.table.column(utilization_column(index)), *utilization);
    }
    if (const auto used = number_of(fields, layout_.used)) {
      log_.table.add(log_.table.column(memory_column(index)), *used / kMibPerGib);
    }
    return true;
  }

  GpuLog take() { return std::move(log_); }

 private:
  GpuLog::Gpu* find(const std::string& index) {
    for (GpuLog::Gpu& gpu : log_.gpus) {
      if (gpu.index == index) return &gpu;
    }
    if (log_.gpus.size() == kMaxGpus) return nullptr;
    log_.gpus.push_back({.index = index, .name = "", .memory_gib = 0});
    return &log_.gpus.back();
  }

  Layout layout_;
  std::optional<double> start_;
  GpuLog log_;
};

// The node of "gpu_node7.csv".
std::optional<int64_t> node_of(const std::string& file) {
  constexpr std::string_view kBegin = "gpu_node";
  constexpr std::string_view kEnd = ".csv";
  if (!file.starts_with(kBegin) || !file.ends_with(kEnd)) return std::nullopt;
  return base::parse_integer(
      std::string_view(file).substr(kBegin.size(), file.size() - kBegin.size() - kEnd.size()));
}

}  // namespace

std::string utilization_column(const std::string& gpu_index) { return "utilization:" + gpu_index; }
std::string memory_column(const std::string& gpu_index) { return "memory:" + gpu_index; }

GpuLog read_gpu_log(const std::filesystem::path& path, std::vector<std::string>& remarks) {
  LineReader lines(path);
  std::string line;
  if (!lines.is_open()) return {};
  const std::string file = path.filename().string();
  const Layout layout(lines.next(line) ? line : "");
  if (!layout.is_usable()) {
    remarks.push_back(fmt::format(
        "{}: not a log of GPUs, it lacks one of the columns timestamp, index, utilization.gpu, memory.used",
        file));
    return {};
  }
  LogBuilder log(layout);
  int64_t bad_lines = 0;
  while (lines.next(line)) {
    if (!log.add(track::csv_fields(line))) ++bad_lines;
  }
  if (bad_lines > 0) remarks.push_back(fmt::format("{}: {} line(s) cannot be read", file, bad_lines));
  return log.take();
}

std::vector<GpuLog> read_gpu_logs(const std::filesystem::path& folder, std::vector<std::string>& remarks) {
  std::map<int64_t, std::filesystem::path> paths = {{0, folder / "gpu.csv"}};
  std::error_code error;
  for (std::filesystem::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    if (const auto node = node_of(entry->path().filename().string())) paths[*node] = entry->path();
  }
  std::vector<GpuLog> logs;
  for (const auto& [node, path] : paths) {
    GpuLog log = read_gpu_log(path, remarks);
    log.node = node;
    if (!log.gpus.empty()) logs.push_back(std::move(log));
  }
  return logs;
}

}  // namespace lockstep::report
