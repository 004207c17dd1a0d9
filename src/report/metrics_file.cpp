#include "report/metrics_file.h"

#include <fmt/format.h>

#include <lockstep/json.h>
#include <charconv>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <string_view>

#include "base/number.h"
#include "report/line_reader.h"
#include "track/csv_line.h"

namespace lockstep::report {
namespace {

constexpr std::string_view kPerStep = "per_step:";
constexpr double kMillisecondsPerSecond = 1e3;

std::optional<double> parse_real(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// "data" of "time_data_s"; empty: no such name.
std::string_view part_of_step(std::string_view column) {
  constexpr std::string_view kBegin = "time_";
  constexpr std::string_view kEnd = "_s";
  if (column.size() <= kBegin.size() + kEnd.size() || !column.starts_with(kBegin) || !column.ends_with(kEnd))
    return {};
  return column.substr(kBegin.size(), column.size() - kBegin.size() - kEnd.size());
}

// Puts values into the table, and beside the times of a row what they are a step.
class Rows {
 public:
  explicit Rows(ThinnedTable& table) : table_(table) {}

  // The target of a column; nullopt: there are too many.
  struct Target {
    size_t column = 0;
    std::optional<size_t> per_step;
    double last_step = 0;
  };
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

// Numbers are never in quotes, so that a row is split without copies. False: no row.
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

// What json_value() of the trackers wrote.
std::optional<double> number_of(const Json& value) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (value.is_number()) return value.get<double>();
  if (value == "NaN") return std::numeric_limits<double>::quiet_NaN();
  if (value == "Infinity") return kInfinity;
  if (value == "-Infinity") return -kInfinity;
  return std::nullopt;
}

// Histograms, texts and hyperparameters are lines too, and no rows.
bool is_metrics(const Json& line) {
  return line.contains("step") && line["step"].is_number_integer() && !line.contains("histogram") &&
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

}  // namespace lockstep::report
