#include <lockstep/track.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace lockstep {
namespace {

// The same multiplications as in torch.utils.tensorboard, so that the limits are bit-identical.
std::vector<double> make_edges() {
  std::vector<double> positive;
  for (double limit = 1e-12; limit < 1e20; limit *= 1.1) positive.push_back(limit);
  std::vector<double> edges;
  for (auto limit = positive.rbegin(); limit != positive.rend(); ++limit) edges.push_back(-*limit);
  edges.push_back(0);
  edges.insert(edges.end(), positive.begin(), positive.end());
  return edges;
}

// The bucket of value as numpy.histogram chooses it: the last bucket includes its upper limit.
// The number of buckets if the value is in none of them.
size_t bucket_of(double value, std::span<const double> edges) {
  const size_t buckets = edges.size() - 1;
  if (value == edges.back()) return buckets - 1;
  if (!(value >= edges.front() && value < edges.back())) return buckets;
  return static_cast<size_t>(std::upper_bound(edges.begin(), edges.end(), value) - edges.begin()) - 1;
}

// Keeps the buckets from the first to the last non-empty one, and an empty one before them, whose
// limit is the lower limit of the first.
void keep_support(std::span<const double> counts, std::span<const double> edges, Histogram& histogram) {
  const auto holds = [](double count) { return count > 0; };
  const auto first = std::find_if(counts.begin(), counts.end(), holds);
  if (first == counts.end()) {
    histogram.bucket_limits = {std::numeric_limits<double>::max()};
    histogram.bucket_counts = {0};
    return;
  }
  const size_t begin = static_cast<size_t>(first - counts.begin());
  size_t end = counts.size();
  while (counts[end - 1] == 0) --end;
  histogram.bucket_limits.assign(edges.begin() + begin, edges.begin() + end + 1);
  histogram.bucket_counts.assign(1, 0);
  histogram.bucket_counts.insert(histogram.bucket_counts.end(), counts.begin() + begin, counts.begin() + end);
}

template <typename T>
Histogram make_histogram(std::span<const T> values) {
  static const std::vector<double> edges = make_edges();
  std::vector<double> counts(edges.size());  // the last one counts the values in no bucket
  Histogram histogram;
  histogram.count = static_cast<double>(values.size());
  if (!values.empty()) histogram.min = histogram.max = static_cast<double>(values.front());
  for (const T element : values) {
    const double value = static_cast<double>(element);
    histogram.sum += value;
    histogram.sum_squares += value * value;
    // Both comparisons are false for NaN, and one NaN makes min and max NaN, as in numpy.
    if (value < histogram.min || std::isnan(value)) histogram.min = value;
    if (value > histogram.max || std::isnan(value)) histogram.max = value;
    ++counts[bucket_of(value, edges)];
  }
  keep_support(std::span(counts).first(edges.size() - 1), edges, histogram);
  return histogram;
}

}  // namespace

Histogram Histogram::of(std::span<const double> values) { return make_histogram(values); }
Histogram Histogram::of(std::span<const float> values) { return make_histogram(values); }

}  // namespace lockstep
