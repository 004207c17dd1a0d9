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

// Means over the samples of many batches, of the loss and of each metric. Exact over
// ranks: sums and counts are added up, not means of means. On a device other than the
// CPU the sums stay there until they are read, so that adding does not wait.
class MetricSums {
 public:
  // Where to keep the sums of values that are not on the CPU: their own device, or the
  // CPU, which waits for them.
  explicit MetricSums(bool keep_on_device = true) : keep_on_device_(keep_on_device) {}

  // Values are means over `samples`.
  void add(const LossResult& result, int64_t samples);
  void clear() { sums_.clear(); }

  struct Means {
    std::map<std::string, double> values;  // "loss" and the metrics
    double samples = 0;
  };
  // Of this rank alone. Waits for the device.
  Means own() const;
  // Over all ranks; every rank calls it. A metric that only some ranks have counts where
  // it is. Blocks.
  Means over(const Communicator& communicator) const;

  // The sums and counts of all ranks, for a checkpoint in the middle of an epoch; and
  // back, on one rank. Every rank calls totals().
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
