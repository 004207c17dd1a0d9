#include "train/snapshot.h"

#include <lockstep/data.h>
#include <lockstep/error.h>
#include <lockstep/launch.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <string_view>

#include "base/log.h"
#include "parallel/parallel_model.h"
#include "torch_private/random_state.h"
#include "train/step.h"

namespace lockstep::train {
namespace {

using checkpoint::Reader;
using checkpoint::Snapshot;
using checkpoint::TensorPiece;

// Converts bytes to a uint8 tensor in host memory, as generators and checkpoints keep them, and back
// from any contiguous host tensor.
at::Tensor bytes_tensor(std::string_view bytes) {
  at::Tensor tensor = at::empty({static_cast<int64_t>(bytes.size())}, at::kByte);
  std::copy(bytes.begin(), bytes.end(), tensor.mutable_data_ptr<uint8_t>());
  return tensor;
}

std::string tensor_bytes(const at::Tensor& tensor) {
  return {static_cast<const char*>(tensor.const_data_ptr()), tensor.nbytes()};
}

const c10::Device kCpu(c10::DeviceType::CPU);

// The states of the default generators of the CPU and of the device, as bytes.
std::string random_state(c10::Device device) {
  // The length of a state depends on the device: the CPU's state comes first, with its length.
  const std::string cpu = tensor_bytes(torch_private::random_state(kCpu));
  const std::string other = device.is_cpu() ? "" : tensor_bytes(torch_private::random_state(device));
  return std::to_string(cpu.size()) + ":" + cpu + other;
}

void set_random_state(const std::string& state, c10::Device device) {
  const size_t colon = state.find(':');
  const size_t cpu_bytes = std::stoul(state.substr(0, colon));
  torch_private::set_random_state(kCpu, bytes_tensor(state.substr(colon + 1, cpu_bytes)));
  const std::string other = state.substr(colon + 1 + cpu_bytes);
  if (!device.is_cpu() && !other.empty()) torch_private::set_random_state(device, bytes_tensor(other));
}

// Seeds the random streams of a rank at a step, for a training that resumes with another number of
// ranks. Depends only on its arguments.
void seed_stream(uint64_t seed, int64_t step, int rank) {
  // The mixing of SampleSeeds: neighbouring steps and ranks get unrelated streams.
  torch::manual_seed(SampleSeeds(static_cast<int64_t>(seed), step).of(rank));
}

Json data_position(const BatchSource& data) {
  Json loaders = Json::object();
  for (const auto& [name, state] : data.state()) {
    loaders[name] = {{"seed", state.seed}, {"epoch", state.epoch}, {"position", state.position}};
  }
  return {{"loaders", loaders}, {"batches_done", data.batches_done()}};
}

void restore_data(const Json& position, BatchSource& data) {
  std::map<std::string, SamplerState> states;
  for (const auto& [name, state] : position.at("loaders").items()) {
    SamplerState& saved = states[name];
    state.at("seed").get_to(saved.seed);
    state.at("epoch").get_to(saved.epoch);
    state.at("position").get_to(saved.position);
  }
  data.load_state(states, position.at("batches_done").get<int64_t>());
}

Json callback_states(const std::vector<std::shared_ptr<Callback>>& callbacks) {
  Json states = Json::array();
  for (const auto& callback : callbacks) {
    states.push_back({{"name", callback->name()}, {"state", callback->state()}});
  }
  return states;
}

void restore_callbacks(const Json& states, const std::vector<std::shared_ptr<Callback>>& callbacks) {
  std::vector<bool> used(states.size());
  for (const auto& callback : callbacks) {
    for (size_t i = 0; i < states.size(); ++i) {
      if (used[i] || states[i].at("name") != callback->name()) continue;
      used[i] = true;
      const std::string& state = states[i].at("state").text();
      if (!state.empty()) callback->load_state(state);
      break;
    }
  }
}

Json numbers(const std::map<std::string, double>& values) {
  Json result = Json::object();
  for (const auto& [name, value] : values) result[name] = exact_number(value);
  return result;
}

Json exact_list(const std::vector<double>& values) {
  Json list = Json::array();
  for (const double value : values) list.push_back(exact_number(value));
  return list;
}

// Empty for a checkpoint without the list.
std::vector<double> exact_list_of(const Json& metadata, const char* name) {
  std::vector<double> values;
  if (!metadata.contains(name)) return values;
  for (const Json& value : metadata.at(name)) values.push_back(exact_number_of(value));
  return values;
}

void restore_average(const Reader& reader, const TrainState& state) {
  if (state.average == nullptr) return;
  const NamedTensors average = parallel::read_section(reader, "average");
  if (!average.empty()) state.average->load_state(average);
}

// A checkpoint of another program has no epochs and no position in the data: both start from the
// beginning.
void restore_imported(const Reader& reader, TrainState& state) {
  const std::string folder = reader.folder().string();
  if (!reader.metadata().contains("optimizer")) {
    base::log_info("train", "'{}' has only weights: training starts with them", folder);
    return;
  }
  state.step.restore_state(reader);
  state.progress.result.step = reader.step();
  base::log_info("train",
                 "'{}' was imported: training resumes at its step {}, and the data start from the beginning",
                 folder, state.progress.result.step);
}

void restore_random_streams(const Reader& reader, const TrainState& state, const World& world,
                            uint64_t seed) {
  const std::string own = parallel::name_under("random", std::to_string(world.rank()));
  if (reader.manifest().world_size == world.size() && reader.has(own)) {
    set_random_state(tensor_bytes(reader.read(own)), world.device());
  } else {
    seed_stream(seed, state.progress.result.step, world.rank());
  }
}

}  // namespace

Snapshot take_snapshot(const TrainState& state, const World& world, bool weights_only) {
  const TrainingProgress& progress = state.progress;
  Snapshot snapshot;
  snapshot.step = progress.result.step;
  snapshot.epoch = progress.epochs_done;
  snapshot.world_size = world.size();
  if (weights_only) {
    state.step.parallel().add_weights_to(snapshot);
    if (!world.is_main()) return snapshot;
    if (state.average != nullptr) parallel::add_section(snapshot, "average", state.average->state());
    snapshot.metadata["config"] = Json::parse(state.config.to_json());
    return snapshot;
  }
  const std::vector<std::string> streams =
      world.communicator().all_gather_bytes(random_state(world.device()));
  Json epoch_sums = state.sums.totals(world.communicator());
  state.step.add_to(snapshot);
  if (!world.is_main()) return snapshot;  // rank 0 has everything that is not sharded
  if (state.average != nullptr) parallel::add_section(snapshot, "average", state.average->state());
  for (size_t rank = 0; rank < streams.size(); ++rank) {
    snapshot.pieces.push_back(TensorPiece::whole(parallel::name_under("random", std::to_string(rank)),
                                                 bytes_tensor(streams[rank])));
  }
  Json& metadata = snapshot.metadata;
  metadata["data"] = data_position(state.data);
  metadata["epoch_sums"] = std::move(epoch_sums);
  metadata["stopped"] = progress.stopped;
  metadata["callbacks"] = callback_states(state.callbacks);
  metadata["iteration"] = progress.result.iteration;
  metadata["epochs_done"] = progress.epochs_done;
  metadata["metrics"] = numbers(progress.result.metrics);
  metadata["train_losses"] = exact_list(progress.train_losses);
  metadata["val_losses"] = exact_list(progress.val_losses);
  metadata["best_validation"] = exact_number(progress.best_validation);
  metadata["best_saved"] = exact_number(progress.best_saved);
  metadata["best_values"] = exact_list(progress.best_values);
  metadata["trained_s"] = progress.trained_s;
  metadata["config"] = Json::parse(state.config.to_json());
  return snapshot;
}

void restore_snapshot(const Reader& reader, TrainState& state, const World& world, uint64_t seed) {
  const Json& metadata = reader.metadata();
  state.step.restore_weights(reader);
  restore_average(reader, state);
  if (!metadata.contains("epochs_done")) {
    restore_imported(reader, state);
    return;
  }
  state.step.restore_state(reader);
  TrainingProgress& progress = state.progress;
  progress.result.step = reader.step();
  metadata.at("iteration").get_to(progress.result.iteration);
  for (const auto& [name, value] : metadata.at("metrics").items()) {
    progress.result.metrics[name] = exact_number_of(value);
  }
  metadata.at("epochs_done").get_to(progress.epochs_done);
  // If the end was changed since the save, an earlier early stop does not count.
  const Json& saved = metadata.at("config");
  const TrainConfig& config = state.config;
  const bool same_end = saved.value("max_iter", int64_t{-1}) == config.max_iter &&
                        saved.value("max_steps", int64_t{0}) == config.max_steps &&
                        saved.value("max_time_s", 0.0) == config.max_time_s;
  progress.stopped = same_end ? metadata.value("stopped", "") : "";
  progress.train_losses = exact_list_of(metadata, "train_losses");
  progress.val_losses = exact_list_of(metadata, "val_losses");
  progress.trained_s = metadata.value("trained_s", 0.0);
  // Values of another metric cannot be compared.
  if (saved.value("best_metric", "val_loss") == config.best_metric &&
      saved.value("best_mode", "min") == config.best_mode) {
    progress.best_validation = exact_number_of(metadata.at("best_validation"));
    progress.best_saved =
        exact_number_of(metadata.at(metadata.contains("best_saved") ? "best_saved" : "best_validation"));
    for (const double value : exact_list_of(metadata, "best_values")) {
      if (std::isfinite(value)) progress.best_values.push_back(value);
    }
  }
  restore_data(metadata.at("data"), state.data);
  // Only one rank loads the sums of all ranks.
  if (world.is_main()) state.sums.load_totals(metadata.at("epoch_sums"));
  restore_callbacks(metadata.at("callbacks"), state.callbacks);
  restore_random_streams(reader, state, world, seed);
}

}  // namespace lockstep::train
