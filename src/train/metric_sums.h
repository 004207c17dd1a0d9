#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <lockstep/trainer.h>

#include <lockstep/json.h>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep {
class Communicator;
}

namespace lockstep::train {

// Means of the loss and of each metric over the samples of many batches, and the values of counted metrics
// (LossResult::counts). Exact over ranks: sums and counts are added, not means of means. On a device other
// than the CPU the sums stay there until they are read, so that adding does not wait.
class MetricSums {
 public:
  // Where to keep sums of values that are not on the CPU: on their own device, or on the CPU, which
  // waits for them.
  explicit MetricSums(bool keep_on_device = true) : keep_on_device_(keep_on_device) {}

  // Values are means over `samples`.
  void add(const LossResult& result, int64_t samples);
  void clear() {
    sums_.clear();
    counts_.clear();
  }

  struct Means {
    std::map<std::string, double> values;  // "loss", the metrics and the counted metrics
    double samples = 0;
  };
  // This rank's means. Waits for the device.
  Means own() const;
  // Means over all ranks. A metric that only some ranks have is a mean over those ranks. Collective;
  // blocks.
  Means over(const Communicator& communicator) const;

  // The sums and counts of all ranks, for a checkpoint in the middle of an epoch. One rank loads them.
  // totals() is collective.
  Json totals(const Communicator& communicator) const;
  void load_totals(const Json& totals);

 private:
  struct Sum {
    double value = 0;
    double count = 0;
    at::Tensor on_device;  // adds to value
  };
  struct Counts {
    std::vector<double> sums;
    std::vector<at::Tensor> on_device;               // added to sums; rows are appended to them
    std::vector<int64_t> shape;                      // the first number is -1 for rows
    std::function<double(const at::Tensor&)> value;  // empty: only known from a checkpoint so far
  };
  // Sums without a part on the device.
  struct Totals {
    std::map<std::string, Sum> means;
    std::map<std::string, Counts> counts;
  };
  void add(std::string_view name, const at::Tensor& value, int64_t samples);
  void add(const std::string& name, const MetricCounts& counts);
  Totals own_totals() const;
  static Json to_json(const Totals& totals);
  static void add_json(Totals& totals, const Json& other);
  // Of all ranks; the values of counts are this rank's functions.
  Totals gather(const Communicator& communicator) const;
  static Means means_of(const Totals& totals);

  bool keep_on_device_;
  std::map<std::string, Sum, std::less<>> sums_;
  std::map<std::string, Counts, std::less<>> counts_;
};

// A scalar's value. Waits for its device.
double scalar_value(const at::Tensor& scalar);

}  // namespace lockstep::train
