#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace lockstep::report {

struct Point {
  double x = 0;
  double y = 0;
  bool operator==(const Point&) const = default;
};

// A table of named columns over a rising x, in bounded memory for any number of rows. Up to
// kMaxBuckets rows are kept unchanged. With more, neighbouring rows share a bucket, which keeps the
// least and the greatest value of each column, so that no spike is lost. All columns have the same
// buckets.
class ThinnedTable {
 public:
  static constexpr size_t kMaxBuckets = 500;

  // The statistics of a column over all rows. Values that are not finite are only counted.
  struct Totals {
    int64_t count = 0;
    double sum = 0;
    Point least;
    Point greatest;
    Point last;
    int64_t not_finite = 0;
    double first_not_finite_x = 0;

    double mean() const { return sum / static_cast<double>(count); }
  };

  // The index of the column with this name, which is added if it does not exist.
  size_t column(const std::string& name);
  void begin_row(double x);
  // Adds a value to the last row. REQUIRES: begin_row() was called.
  void add(size_t column, double value);

  int64_t rows() const { return rows_; }
  // Of the last row; 0: there is none.
  double last_x() const { return bucket_x_.empty() ? 0 : bucket_x_.back(); }
  bool is_thinned() const { return rows_per_bucket_ > 1; }
  std::vector<std::string> names() const;  // in the order in which columns were added
  bool has(const std::string& name) const { return index_.contains(name); }

  // nullptr: the column does not exist or has no finite value.
  const Totals* totals(const std::string& name) const;
  // nullptr: the column does not exist.
  const Totals* all_totals(const std::string& name) const;
  // The column's points in the order of rows: all of them, or the least and the greatest of each
  // bucket; the last point is always included.
  std::vector<Point> points(const std::string& name) const;
  // One point per bucket: its mean, at the bucket's last x. The x are the same for all columns, so
  // that columns can be stacked.
  std::vector<Point> means(const std::string& name) const;

 private:
  struct Bucket {
    Point least;
    Point greatest;
    double sum = 0;
    int64_t count = 0;

    void add(const Bucket& other);
  };
  struct Column {
    std::string name;
    Totals totals;
    std::vector<Bucket> buckets;  // up to the last non-empty one
  };

  void halve();

  std::vector<Column> columns_;
  std::map<std::string, size_t> index_;
  std::vector<double> bucket_x_;  // the last x of each bucket
  int64_t rows_ = 0;
  int64_t rows_per_bucket_ = 1;
};

}  // namespace lockstep::report
