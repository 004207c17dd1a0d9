// Seconds to save or load a state of 1 GB, checksums included. Prints one JSON line.
//
//   build/bin/bench/checkpoint_io save FOLDER          published, not synced, as torch.save leaves it
//   build/bin/bench/checkpoint_io save-synced FOLDER   on disk
//   build/bin/bench/checkpoint_io load FOLDER          into new tensors
//   build/bin/bench/checkpoint_io resume FOLDER        into the tensors of a model
//   build/bin/bench/checkpoint_io ranges FOLDER        no seconds: the most bytes that one of 3 ranks
//                                                      reads to get its third of what was saved, over
//                                                      the bytes of that third and the manifest
//
// load, resume and ranges read what a save of the same program left there.

#include <lockstep/error.h>
#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <string>

#include "checkpoint/reader.h"
#include "checkpoint/store.h"

namespace lockstep::checkpoint {
namespace {

// The state of bench/peers/checkpoint_io.py.
constexpr int kTensors = 64;
constexpr int64_t kRows = 4096;
constexpr int64_t kColumns = 1024;

double now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::string name_of(int index) { return "layer" + std::to_string(index) + ".weight"; }

double save(const std::filesystem::path& folder, bool sync) {
  Snapshot snapshot{.step = 1};
  for (int i = 0; i < kTensors; ++i) {
    snapshot.pieces.push_back(TensorPiece::whole(name_of(i), at::rand({kRows, kColumns})));
  }
  std::filesystem::remove_all(folder);
  const double start = now_s();
  Store(folder, {.sync = sync}).save(snapshot);
  return now_s() - start;
}

double load(const std::filesystem::path& folder, bool into_a_model) {
  std::vector<at::Tensor> model;
  for (int i = 0; into_a_model && i < kTensors; ++i) model.push_back(at::rand({kRows, kColumns}));
  const double start = now_s();
  const Reader reader(folder / step_name(1));
  std::vector<Target> targets;
  for (int i = 0; i < kTensors; ++i) {
    const at::Tensor out =
        into_a_model ? model[static_cast<size_t>(i)] : at::empty(reader.entry(name_of(i)).shape);
    targets.push_back({.name = name_of(i), .out = out});
  }
  reader.read(targets);
  return now_s() - start;
}

// Thirds begin in the middle of rows: nothing of the files is cut there.
double bytes_over_need(const std::filesystem::path& folder) {
  constexpr int kRanks = 3;
  constexpr int64_t kElements = kRows * kColumns;
  double worst = 0;
  for (int rank = 0; rank < kRanks; ++rank) {
    const Reader reader(folder / step_name(1));
    const int64_t manifest = reader.bytes_read();
    const int64_t first = kElements * rank / kRanks;
    const int64_t count = kElements * (rank + 1) / kRanks - first;
    std::vector<Target> targets;
    for (int i = 0; i < kTensors; ++i) {
      targets.push_back({.name = name_of(i), .out = at::empty({count}), .first_element = first});
    }
    reader.read(targets);
    const auto need = static_cast<double>(kTensors * count * int64_t{sizeof(float)} + manifest);
    worst = std::max(worst, static_cast<double>(reader.bytes_read()) / need);
  }
  return worst;
}

int run(int argc, char** argv) {
  try {
    const std::string what = argc == 3 ? argv[1] : "";
    double seconds = 0;
    if (what == "save" || what == "save-synced") {
      seconds = save(argv[2], what == "save-synced");
    } else if (what == "load" || what == "resume") {
      seconds = load(argv[2], what == "resume");
    } else if (what == "ranges") {
      std::printf("{\"value\": %.6f, \"unit\": \"x\"}\n", bytes_over_need(argv[2]));
      return 0;
    } else {
      std::fprintf(stderr, "usage: checkpoint_io save|save-synced|load|resume|ranges FOLDER\n");
      return 2;
    }
    std::printf("{\"value\": %.6f, \"unit\": \"s\"}\n", seconds);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}

}  // namespace
}  // namespace lockstep::checkpoint

int main(int argc, char** argv) { return lockstep::checkpoint::run(argc, argv); }
