#include "report/thinned_table.h"

#include <cmath>

#include "base/check.h"

namespace lockstep::report {

void ThinnedTable::Bucket::add(const Bucket& other) {
  if (other.count == 0) return;
  if (count == 0 || other.least.y < least.y) least = other.least;
  if (count == 0 || other.greatest.y > greatest.y) greatest = other.greatest;
  sum += other.sum;
  count += other.count;
}

size_t ThinnedTable::column(const std::string& name) {
  const auto [found, is_new] = index_.try_emplace(name, columns_.size());
  if (is_new) columns_.push_back({.name = name, .totals = {}, .buckets = {}});
  return found->second;
}

void ThinnedTable::begin_row(double x) {
  if (rows_ == static_cast<int64_t>(kMaxBuckets) * rows_per_bucket_) halve();
  const auto bucket = static_cast<size_t>(rows_ / rows_per_bucket_);
  if (bucket == bucket_x_.size()) bucket_x_.push_back(x);
  bucket_x_[bucket] = x;
  ++rows_;
}

void ThinnedTable::halve() {
  const auto pairs = [](size_t size) { return (size + 1) / 2; };
  for (Column& column : columns_) {
    std::vector<Bucket>& buckets = column.buckets;
    for (size_t i = 1; i < buckets.size(); ++i) {
      if (i % 2 == 0) buckets[i / 2] = buckets[i];
      if (i % 2 == 1) buckets[i / 2].add(buckets[i]);
    }
    buckets.resize(pairs(buckets.size()));
  }
  for (size_t i = 0; i < bucket_x_.size(); ++i) bucket_x_[i / 2] = bucket_x_[i];
  bucket_x_.resize(pairs(bucket_x_.size()));
  rows_per_bucket_ *= 2;
}

void ThinnedTable::add(size_t column, double value) {
  base::check(rows_ > 0, "a value without a row");
  Column& target = columns_.at(column);
  Totals& totals = target.totals;
  const Point point{bucket_x_.back(), value};
  if (!std::isfinite(value)) {
    if (totals.not_finite++ == 0) totals.first_not_finite_x = point.x;
    return;
  }
  if (totals.count == 0 || value < totals.least.y) totals.least = point;
  if (totals.count == 0 || value > totals.greatest.y) totals.greatest = point;
  totals.last = point;
  totals.sum += value;
  ++totals.count;
  target.buckets.resize(bucket_x_.size());
  target.buckets.back().add({.least = point, .greatest = point, .sum = value, .count = 1});
}

std::vector<std::string> ThinnedTable::names() const {
  std::vector<std::string> names;
  for (const Column& column : columns_) names.push_back(column.name);
  return names;
}

const ThinnedTable::Totals* ThinnedTable::all_totals(const std::string& name) const {
  const auto found = index_.find(name);
  return found == index_.end() ? nullptr : &columns_[found->second].totals;
}

const ThinnedTable::Totals* ThinnedTable::totals(const std::string& name) const {
  const Totals* totals = all_totals(name);
  return totals != nullptr && totals->count > 0 ? totals : nullptr;
}

std::vector<Point> ThinnedTable::points(const std::string& name) const {
  std::vector<Point> points;
  if (totals(name) == nullptr) return points;
  const Column& column = columns_[index_.at(name)];
  for (const Bucket& bucket : column.buckets) {
    if (bucket.count == 0) continue;
    const bool falls = bucket.greatest.x < bucket.least.x;
    points.push_back(falls ? bucket.greatest : bucket.least);
    if (bucket.least != bucket.greatest) points.push_back(falls ? bucket.least : bucket.greatest);
  }
  if (points.back() != column.totals.last) points.push_back(column.totals.last);
  return points;
}

std::vector<Point> ThinnedTable::means(const std::string& name) const {
  std::vector<Point> points;
  if (totals(name) == nullptr) return points;
  const std::vector<Bucket>& buckets = columns_[index_.at(name)].buckets;
  for (size_t i = 0; i < buckets.size(); ++i) {
    if (buckets[i].count == 0) continue;
    points.push_back({bucket_x_[i], buckets[i].sum / static_cast<double>(buckets[i].count)});
  }
  return points;
}

}  // namespace lockstep::report
