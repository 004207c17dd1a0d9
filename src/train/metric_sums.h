#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <lockstep/trainer.h>

#include <lockstep/json.h>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>

namespace lockstep {
class Communicator;
}

namespace lockstep::train {

// Means of the loss and of each metric over the samples of many batches. Exact over ranks: sums and
// counts are added, not means of means. On a device other than the CPU the sums stay there until they
// are read, so that adding does not wait.
class MetricSums {
 public:
  // Where to keep sums of values that are not on the CPU: on their own device, or on the CPU, which
  // waits for them.
  explicit MetricSums(bool keep_on_device = true) : keep_on_device_(keep_on_device) {}

  // Values are means over `samples`.
  void add(const LossResult& result, int64_t samples);
  void clear() { sums_.clear(); }

  struct Means {
    std::map<std::string, double> values;  // "loss" and the metrics
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
  void add(std::string_view name, const at::Tensor& value, int64_t samples);
  // By name, of all ranks.
  std::map<std::string, Sum> gather(const Communicator& communicator) const;

  bool keep_on_device_;
  std::map<std::string, Sum, std::less<>> sums_;
};

// A scalar's value. Waits for its device.
double scalar_value(const at::Tensor& scalar);

}  // namespace lockstep::train
