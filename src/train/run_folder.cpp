#include "train/run_folder.h"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <lockstep/error.h>
#include <lockstep/world.h>
#include <unistd.h>

#include <ctime>

#include "base/atomic_file.h"
#include "base/process.h"

namespace lockstep::train {
namespace {

namespace fs = std::filesystem;

// Answers of rank 0 to the others: a path, or why there is none.
constexpr char kMade = '+';
constexpr char kFailed = '-';

fs::path new_folder_name(const std::string& root) {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  ::localtime_r(&now, &local);
  const std::string program = fs::path(base::own_executable()).filename().string();
  return fs::path(root) / fmt::format("{}_{:%Y%m%dT%H%M%S}_{:x}", program, local, ::getpid());
}

std::string make_folder(const TrainConfig& config) {
  try {
    const fs::path path = new_folder_name(config.root_folder);
    fs::create_directories(path);
    base::publish_file(path / "config.json", config.to_json() + "\n");
    return kMade + path.string();
  } catch (const std::exception& error) {
    return kFailed + std::string(error.what());
  }
}

}  // namespace

RunFolder::RunFolder(const World& world, const TrainConfig& config) {
  const std::string answer =
      world.communicator().broadcast_bytes(world.is_main() ? make_folder(config) : std::string(), 0);
  if (answer.at(0) == kFailed) {
    throw ConfigError("train", fmt::format("cannot make a run folder under root_folder '{}': {}",
                                           config.root_folder, answer.substr(1)));
  }
  path_ = answer.substr(1);
  if (world.is_main()) {
    metrics_.open(path_ / "metrics.csv");
    metrics_ << "epoch,steps,train_loss\n";
  }
}

void RunFolder::write_metrics(int64_t epoch, int64_t steps, double train_loss) {
  if (metrics_.is_open()) metrics_ << fmt::format("{},{},{}\n", epoch, steps, train_loss) << std::flush;
}

}  // namespace lockstep::train
