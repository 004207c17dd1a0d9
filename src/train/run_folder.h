#pragma once

#include <lockstep/train_config.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>

namespace lockstep {
class World;
}

namespace lockstep::train {

// The folder of one run: <root>/<program>_<YYYYmmddTHHMMSS>_<pid in hex>, with
// config.json and metrics.csv. Rank 0 makes and writes it; all ranks know its path.
class RunFolder {
 public:
  // Every rank calls it. ConfigError on all ranks when rank 0 cannot make it.
  RunFolder(const World& world, const TrainConfig& config);

  const std::filesystem::path& path() const { return path_; }
  // Appends a row to metrics.csv. Only rank 0 writes.
  void write_metrics(int64_t epoch, int64_t steps, double train_loss);

 private:
  std::filesystem::path path_;
  std::ofstream metrics_;
};

}  // namespace lockstep::train
