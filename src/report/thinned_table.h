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

// Rows of named numbers against a rising x, in bounded memory however many there are.
// Up to kMaxBuckets rows are kept as they are; beyond, neighbouring rows share a bucket,
// of which the least and the greatest value of each column are kept, so that no spike is
// lost. All columns have the same buckets.
class ThinnedTable {
 public:
  static constexpr size_t kMaxBuckets = 500;

  // What is known of a column without thinning. Values that are not finite are counted
  // and kept out of everything else.
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

  // The index of a column, which is made where there is none of this name.
  size_t column(const std::string& name);
  void begin_row(double x);
  // Into the row that was begun last; REQUIRES one.
  void add(size_t column, double value);

  int64_t rows() const { return rows_; }
  bool is_thinned() const { return rows_per_bucket_ > 1; }
  std::vector<std::string> names() const;  // in the order of their making
  bool has(const std::string& name) const { return index_.contains(name); }

  // nullptr: there is no such column, or no finite value in it.
  const Totals* totals(const std::string& name) const;
  // nullptr: there is no such column.
  const Totals* all_totals(const std::string& name) const;
  // The column's points in the order of rows: all of them, or each bucket's least and
  // greatest, and the last one in any case.
  std::vector<Point> points(const std::string& name) const;
  // One point a bucket, its mean at the bucket's last x: the same x for all columns, so
  // that they can be stacked.
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
    std::vector<Bucket> buckets;  // up to the last one with a value
  };

  void halve();

  std::vector<Column> columns_;
  std::map<std::string, size_t> index_;
  std::vector<double> bucket_x_;  // the last x of each bucket
  int64_t rows_ = 0;
  int64_t rows_per_bucket_ = 1;
};

}  // namespace lockstep::report
