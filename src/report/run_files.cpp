#include "report/run_files.h"

#include <sys/types.h>

#include <fmt/format.h>
#include <lockstep/json.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <limits>
#include <map>
#include <optional>
#include <string_view>
#include <system_error>
#include <utility>

#include "base/folder.h"
#include "base/number.h"
#include "track/csv_line.h"

namespace lockstep::report {

LineReader::LineReader(const std::filesystem::path& path) {
  std::error_code error;
  // Opening a pipe would block forever.
  if (std::filesystem::is_regular_file(path, error)) file_.reset(std::fopen(path.c_str(), "rbe"));
}

bool LineReader::read_line(std::string& line, bool& fits) {
  line.clear();
  fits = true;
  char part[4096];
  while (std::fgets(part, sizeof part, file_.get()) != nullptr) {
    // fgets does not return a length, and a foreign file may contain zero bytes: the rest of a part
    // after a zero byte is lost.
    const size_t size = std::strlen(part);
    const bool ended = size > 0 && part[size - 1] == '\n';
    fits = fits && line.size() + size <= kMaxLineBytes;
    if (fits) line.append(part, ended ? size - 1 : size);
    if (ended) return true;
  }
  return false;
}

bool LineReader::next(std::string& line) {
  bool fits = true;
  while (file_ != nullptr && read_line(line, fits)) {
    ++line_number_;
    if (fits) {
      if (line.ends_with('\r')) line.pop_back();
      return true;
    }
    ++too_long_;
  }
  ends_within_line_ = !line.empty() || !fits;
  return false;
}

void LineReader::seek(uint64_t offset_bytes) {
  if (file_ == nullptr) return;
  // Skip the line that contains the byte before the offset.
  if (::fseeko(file_.get(), offset_bytes == 0 ? 0 : static_cast<off_t>(offset_bytes - 1), SEEK_SET) != 0)
    return;
  if (offset_bytes == 0) return;
  std::string rest;
  bool fits = true;
  read_line(rest, fits);
}

// --- metrics ---

namespace {

constexpr std::string_view kPerStep = "per_step:";
constexpr double kMillisecondsPerSecond = 1e3;

std::optional<double> parse_real(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// "data" of "time_data_s"; empty: not a name of this form.
std::string_view part_of_step(std::string_view column) {
  constexpr std::string_view kBegin = "time_";
  constexpr std::string_view kEnd = "_s";
  if (column.size() <= kBegin.size() + kEnd.size() || !column.starts_with(kBegin) || !column.ends_with(kEnd))
    return {};
  return column.substr(kBegin.size(), column.size() - kBegin.size() - kEnd.size());
}

// Adds rows to the table, with the per-step columns.
class Rows {
 public:
  explicit Rows(ThinnedTable& table) : table_(table) {}

  struct Target {
    size_t column = 0;
    std::optional<size_t> per_step;
    double last_step = 0;
  };
  // The index of a column's target; nullopt: there are too many columns.
  std::optional<size_t> target(const std::string& name) {
    if (const auto found = by_name_.find(name); found != by_name_.end()) return found->second;
    if (targets_.size() == kMaxColumns) {
      ++left_out_[name];
      return std::nullopt;
    }
    Target target{.column = table_.column(name), .per_step = {}, .last_step = 0};
    if (const std::string_view part = part_of_step(name); !part.empty()) {
      target.per_step = table_.column(per_step_column(std::string(part)));
    }
    targets_.push_back(target);
    return by_name_[name] = targets_.size() - 1;
  }

  void begin(int64_t step) {
    step_ = static_cast<double>(step);
    table_.begin_row(step_);
  }
  void add(size_t index, double value) {
    Target& target = targets_[index];
    table_.add(target.column, value);
    if (!target.per_step) return;
    if (step_ > target.last_step) {
      table_.add(*target.per_step, value / (step_ - target.last_step) * kMillisecondsPerSecond);
    }
    target.last_step = step_;
  }
  void bad_line(int64_t number) {
    if (bad_lines_++ == 0) first_bad_line_ = number;
  }

  void finish(const LineReader& lines, const std::string& file, std::vector<std::string>& remarks) const {
    if (bad_lines_ > 0) {
      remarks.push_back(fmt::format("{}: {} line{} left out that {} no row of metrics, the first is line {}",
                                    file, bad_lines_, bad_lines_ == 1 ? " was" : "s were",
                                    bad_lines_ == 1 ? "is" : "are", first_bad_line_));
    }
    if (lines.too_long() > 0) {
      remarks.push_back(fmt::format("{}: {} line(s) longer than {} bytes were left out", file,
                                    lines.too_long(), LineReader::kMaxLineBytes));
    }
    if (lines.ends_within_line()) {
      remarks.push_back(fmt::format("{}: the last line is not whole and was left out", file));
    }
    if (!left_out_.empty()) {
      remarks.push_back(fmt::format("{}: {} metrics beyond the first {} were left out", file,
                                    left_out_.size(), kMaxColumns));
    }
  }

 private:
  ThinnedTable& table_;
  std::vector<Target> targets_;
  std::map<std::string, size_t> by_name_;
  std::map<std::string, int64_t> left_out_;
  double step_ = 0;
  int64_t bad_lines_ = 0;
  int64_t first_bad_line_ = 0;
};

using Columns = std::vector<std::optional<size_t>>;

// Numbers are never quoted, so that the row is split without copies. False: not a row.
bool add_csv_row(std::string_view line, const Columns& columns, Rows& rows) {
  const size_t first_comma = std::min(line.find(','), line.size());
  const auto step = base::parse_integer(line.substr(0, first_comma));
  if (!step) return false;
  rows.begin(*step);
  bool whole = true;
  size_t begin = first_comma + 1;
  for (size_t i = 0; begin <= line.size(); ++i) {
    const size_t end = std::min(line.find(',', begin), line.size());
    const std::string_view field = line.substr(begin, end - begin);
    begin = end + 1;
    if (i >= columns.size()) return false;
    if (field.empty() || !columns[i]) continue;
    const auto value = parse_real(field);
    if (value) rows.add(*columns[i], *value);
    whole = whole && value.has_value();
  }
  return whole;
}

// The inverse of track::json_value().
std::optional<double> number_of(const Json& value) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (value.is_number()) return value.get<double>();
  if (value == "NaN") return std::numeric_limits<double>::quiet_NaN();
  if (value == "Infinity") return kInfinity;
  if (value == "-Infinity") return -kInfinity;
  return std::nullopt;
}

// Lines with histograms, texts and hyperparameters are not rows.
bool is_metrics(const Json& line) {
  return line.contains("step") && line["step"].is_integer_of<int64_t>() && !line.contains("histogram") &&
         !line.contains("text");
}

}  // namespace

std::string per_step_column(const std::string& name) { return std::string(kPerStep) + name; }
bool is_per_step_column(const std::string& column) { return column.starts_with(kPerStep); }

bool read_metrics_csv(const std::filesystem::path& path, ThinnedTable& table,
                      std::vector<std::string>& remarks) {
  const std::string file = path.filename().string();
  LineReader lines(path);
  std::string line;
  if (!lines.next(line)) return false;
  const std::vector<std::string> header = track::csv_fields(line);
  if (header.front() != "step") {
    remarks.push_back(fmt::format("{}: not a file of metrics, its first column is not 'step'", file));
    return false;
  }
  Rows rows(table);
  Columns columns;
  for (size_t i = 1; i < header.size(); ++i) columns.push_back(rows.target(header[i]));
  while (lines.next(line)) {
    if (!add_csv_row(line, columns, rows)) rows.bad_line(lines.line_number());
  }
  rows.finish(lines, file, remarks);
  return table.rows() > 0;
}

bool read_metrics_jsonl(const std::filesystem::path& path, ThinnedTable& table,
                        std::vector<std::string>& remarks) {
  LineReader lines(path);
  Rows rows(table);
  std::string line;
  while (lines.next(line)) {
    const Json object = Json::try_parse(line).value_or(nullptr);
    if (!object.is_object()) {
      rows.bad_line(lines.line_number());
      continue;
    }
    if (!is_metrics(object)) continue;
    rows.begin(object["step"].get<int64_t>());
    for (const auto& [name, value] : object.items()) {
      if (name == "step" || name == "time") continue;
      const auto number = number_of(value);
      const auto target = number ? rows.target(name) : std::nullopt;
      if (target) rows.add(*target, *number);
    }
  }
  rows.finish(lines, path.filename().string(), remarks);
  return table.rows() > 0;
}

namespace {

constexpr uint64_t kPlaces = 400;  // lines spread over the file
constexpr uint64_t kTailBytes = 64 << 10;
constexpr int kHeadLines = 16;

void add_line(const std::string& line, StepTimes& result) {
  const Json object = Json::try_parse(line).value_or(nullptr);
  if (!object.is_object() || !object.contains("step") || !object.contains("time")) return;
  const Json& step = object["step"];
  const Json& time = object["time"];
  if (!step.is_number() || !time.is_number()) return;
  const Point point{step.get<double>(), time.get<double>()};
  if (result.times.empty() || (point.x > result.times.back().x && point.y >= result.times.back().y)) {
    result.times.push_back(point);
  }
  if (object.value("text", Json()) == "model" && object.contains("content") &&
      object["content"].is_string()) {
    result.model = object["content"].get<std::string>();
  }
}

}  // namespace

StepTimes sample_step_times(const std::filesystem::path& path) {
  StepTimes result;
  LineReader lines(path);
  std::error_code error;
  const uint64_t size = lines.is_open() ? std::filesystem::file_size(path, error) : 0;
  if (error || size == 0) return result;
  std::string line;
  for (int i = 0; i < kHeadLines && lines.next(line); ++i) add_line(line, result);
  for (uint64_t place = 1; place < kPlaces; ++place) {
    lines.seek(size / kPlaces * place);
    if (lines.next(line)) add_line(line, result);
  }
  lines.seek(size > kTailBytes ? size - kTailBytes : 0);
  while (lines.next(line)) add_line(line, result);
  return result;
}

// --- GPU logs ---

namespace {

constexpr double kMibPerGib = 1024;
constexpr size_t kMaxGpus = 64;

std::string_view trimmed(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t") - begin + 1);
}

// The columns of a log by their names; a header may have units: "memory.used [MiB]".
struct GpuColumns {
  std::optional<size_t> timestamp, index, name, utilization, total, used, power, temperature;

  explicit GpuColumns(std::string_view header) {
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
      if (column == "power.draw") power = i;
      if (column == "temperature.gpu") temperature = i;
    }
  }

  bool is_usable() const { return timestamp && index && (utilization || used); }
};

// "45", "45 %", "1234 MiB"; "[N/A]" is not a number.
std::optional<double> number_of(const std::vector<std::string>& fields, std::optional<size_t> column) {
  if (!column || *column >= fields.size()) return std::nullopt;
  const std::string_view text = trimmed(fields[*column]);
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc()) return std::nullopt;
  return value;
}

// "2026/11/15 12:30:35.123", "2026-11-15T12:30:35" or seconds. Only differences are used, so that
// the time zone does not matter.
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
  return parse_real(trimmed(text));
}

class LogBuilder {
 public:
  explicit LogBuilder(const GpuColumns& columns) : columns_(columns) {}

  // False: not a row of a log.
  bool add(const std::vector<std::string>& fields) {
    if (fields.size() <= std::max(*columns_.timestamp, *columns_.index)) return false;
    const auto seconds = seconds_of(fields[*columns_.timestamp]);
    const std::string index(trimmed(fields[*columns_.index]));
    if (!seconds || index.empty()) return false;
    if (!start_) start_ = seconds;
    GpuLog::Gpu* gpu = find(index);
    if (gpu == nullptr) return false;
    if (columns_.name && *columns_.name < fields.size()) gpu->name = trimmed(fields[*columns_.name]);
    if (const auto total = number_of(fields, columns_.total)) gpu->memory_gib = *total / kMibPerGib;
    log_.table.begin_row(*seconds - *start_);
    if (const auto utilization = number_of(fields, columns_.utilization)) {
      log_.table.add(log_.table.column(utilization_column(index)), *utilization);
    }
    if (const auto used = number_of(fields, columns_.used)) {
      log_.table.add(log_.table.column(memory_column(index)), *used / kMibPerGib);
    }
    if (const auto power = number_of(fields, columns_.power)) {
      log_.table.add(log_.table.column(power_column(index)), *power);
    }
    if (const auto temperature = number_of(fields, columns_.temperature)) {
      log_.table.add(log_.table.column(temperature_column(index)), *temperature);
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

  GpuColumns columns_;
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
std::string power_column(const std::string& gpu_index) { return "power:" + gpu_index; }
std::string temperature_column(const std::string& gpu_index) { return "temperature:" + gpu_index; }

GpuLog read_gpu_log(const std::filesystem::path& path, std::vector<std::string>& remarks) {
  LineReader lines(path);
  std::string line;
  if (!lines.is_open()) return {};
  const std::string file = path.filename().string();
  const GpuColumns columns(lines.next(line) ? line : "");
  if (!columns.is_usable()) {
    remarks.push_back(fmt::format(
        "{}: not a log of GPUs, it lacks one of the columns timestamp, index, utilization.gpu, memory.used",
        file));
    return {};
  }
  LogBuilder log(columns);
  int64_t bad_lines = 0;
  while (lines.next(line)) {
    if (!log.add(track::csv_fields(line))) ++bad_lines;
  }
  if (bad_lines > 0) remarks.push_back(fmt::format("{}: {} line(s) cannot be read", file, bad_lines));
  return log.take();
}

std::map<int64_t, std::filesystem::path> gpu_log_paths(const std::filesystem::path& folder) {
  std::map<int64_t, std::filesystem::path> paths = {{0, folder / "gpu.csv"}};
  std::error_code error;
  for (const base::FolderEntry& entry : base::list_folder(folder, error)) {
    if (const auto node = node_of(entry.path().filename().string())) paths[*node] = entry.path();
  }
  return paths;
}

std::vector<GpuLog> read_gpu_logs(const std::filesystem::path& folder, std::vector<std::string>& remarks) {
  std::vector<GpuLog> logs;
  for (const auto& [node, path] : gpu_log_paths(folder)) {
    GpuLog log = read_gpu_log(path, remarks);
    log.node = node;
    if (!log.gpus.empty()) logs.push_back(std::move(log));
  }
  return logs;
}

}  // namespace lockstep::report
