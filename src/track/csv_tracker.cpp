#include "track/trackers.h"

#include <fmt/format.h>
#include <lockstep/error.h>

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/file.h"
#include "base/log.h"
#include "base/number.h"
#include "track/csv_line.h"
#include "track/output_file.h"

namespace lockstep::track {
namespace {

constexpr std::string_view kStepColumn = "step";

void check_name(std::string_view name) {
  if (name == kStepColumn || name.empty() || name.find_first_of("\r\n") != std::string_view::npos) {
    throw ConfigError(
        "track",
        fmt::format("a metric needs another name, without line breaks, and other than 'step': '{}'", name));
  }
}

std::string header_of(const std::vector<std::string>& columns) {
  std::string line(kStepColumn);
  for (const std::string& column : columns) line += "," + csv_field(column);
  return line + "\n";
}

struct Table {
  std::vector<std::string> columns;  // without the column "step"
  std::string content;               // header and rows
};

// The part of the file that a run resumed at resume_step keeps. nullopt: this tracker did not
// write the file. A last line without a line break is incomplete: the run ended while writing it.
std::optional<Table> table_before(std::string_view content, int64_t resume_step) {
  size_t end = content.find('\n');
  if (end == std::string_view::npos) return std::nullopt;
  Table table;
  table.columns = csv_fields(content.substr(0, end));
  if (table.columns.front() != kStepColumn) return std::nullopt;
  table.columns.erase(table.columns.begin());
  table.content = content.substr(0, end + 1);
  for (size_t begin = end + 1; (end = content.find('\n', begin)) != std::string_view::npos; begin = end + 1) {
    const std::string_view line = content.substr(begin, end + 1 - begin);
    const auto step = base::parse_integer(line.substr(0, line.find_first_of(",\n")));
    if (!step) return std::nullopt;
    if (*step < resume_step) table.content += line;
  }
  return table;
}

class CsvTracker final : public Tracker {
 public:
  explicit CsvTracker(const TrackerOptions& options) : path_(options.folder / "metrics.csv") {
    if (const auto table = options.resume_step ? table_to_resume(*options.resume_step) : std::nullopt) {
      for (const std::string& column : table->columns) add_column(column);
      base::publish_file(path_, table->content);
    } else {
      rename_old_file(path_);
      base::publish_file(path_, header_of({}));
    }
    file_ = OutputFile::append_to(path_);
    row_.resize(columns_.size());
  }

  std::string_view name() const override { return "csv"; }

  void write_scalars(std::span<const Scalar> scalars, int64_t step) override {
    add_columns(scalars);
    if (row_step_ != step) {
      row_step_ = step;
      row_.assign(columns_.size(), "");
      written_row_.clear();
      row_offset_ = file_->size();
    }
    for (const Scalar& scalar : scalars)
      row_[index_.find(scalar.name)->second] = fmt::format("{}", scalar.value);
    write_row();
  }

  void flush() override { file_->sync(); }
  void close(RunStatus status) override { file_->close(); }

 private:
  std::optional<Table> table_to_resume(int64_t resume_step) const {
    const std::string content = read_file(path_);
    if (content.empty()) return std::nullopt;
    std::optional<Table> table = table_before(content, resume_step);
    if (!table) {
      base::log_warning("track", "the tracker csv did not write this file, it is renamed: '{}'",
                        path_.string());
    }
    return table;
  }

  void add_column(const std::string& name) {
    index_.emplace(name, columns_.size());
    columns_.push_back(name);
  }

  void add_columns(std::span<const Scalar> scalars) {
    std::vector<std::string> added;
    for (const Scalar& scalar : scalars) {
      if (index_.contains(scalar.name)) continue;
      check_name(scalar.name);
      if (std::find(added.begin(), added.end(), scalar.name) == added.end()) added.emplace_back(scalar.name);
    }
    if (!added.empty()) rewrite_with(added);
  }

  void rewrite_with(const std::vector<std::string>& added) {
    std::vector<std::string> columns = columns_;
    columns.insert(columns.end(), added.begin(), added.end());
    const std::string old = read_file(path_);
    const std::string more(added.size(), ',');
    std::string content = header_of(columns);
    size_t row_offset = content.size();
    size_t begin = std::min(old.size(), old.find('\n')) + 1;
    for (size_t end = 0; (end = old.find('\n', begin)) != std::string::npos; begin = end + 1) {
      row_offset = content.size();
      content.append(old, begin, end - begin).append(more).append("\n");
    }
    base::publish_file(path_, content);
    file_ = OutputFile::append_to(path_);
    for (const std::string& name : added) add_column(name);
    row_.resize(columns_.size());
    if (!written_row_.empty()) written_row_.insert(written_row_.size() - 1, more);
    row_offset_ = static_cast<int64_t>(written_row_.empty() ? content.size() : row_offset);
  }

  void write_row() {
    std::string text = fmt::format("{},{}\n", *row_step_, fmt::join(row_, ","));
    try {
      file_->replace_from(row_offset_, text);
    } catch (const Error&) {
      put_back_written_row();
      throw;
    }
    written_row_ = std::move(text);
  }

  // There is no space for the longer row; there was for the shorter one.
  void put_back_written_row() {
    try {
      file_->replace_from(row_offset_, written_row_);
    } catch (const Error&) {
      // The row is lost; the caller reports the first failure.
      written_row_.clear();
    }
  }

  std::filesystem::path path_;
  std::optional<OutputFile> file_;
  std::vector<std::string> columns_;
  std::map<std::string, size_t, std::less<>> index_;  // of columns_
  // The last row: its step, its fields, its text in the file, and the offset of that text.
  std::optional<int64_t> row_step_;
  std::vector<std::string> row_;
  std::string written_row_;
  int64_t row_offset_ = 0;
};

}  // namespace

std::unique_ptr<Tracker> make_csv_tracker(const TrackerOptions& options) {
  make_folder(options.folder);
  return std::make_unique<CsvTracker>(options);
}

}  // namespace lockstep::track
