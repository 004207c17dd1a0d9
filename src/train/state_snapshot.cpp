#include "train/state_snapshot.h"

#include <fmt/format.h>
#include <lockstep/error.h>
#include <lockstep/gradient_free.h>
#include <lockstep/world.h>
#include <torch/torch.h>

#include "base/log.h"
#include "engine/engine_impl.h"
#include "engine/sharded_snapshot.h"
#include "engine/snapshot_names.h"
#include "engine/whole_snapshot.h"
#include "train/bytes_tensor.h"
#include "train/deepspeed_step.h"
#include "train/random_state.h"

namespace lockstep::train {
namespace {

using checkpoint::Reader;
using checkpoint::Snapshot;
using checkpoint::TensorPiece;

// Weights and optimizer, as rank 0 has them.
void add_whole(Snapshot& snapshot, const TrainState& state) {
  engine::add_weights(snapshot, *state.model.module());
  if (state.optimizer != nullptr) {
    engine::add_optimizer(snapshot, *state.model.module(), *state.optimizer);
  } else {
    engine::add_section(snapshot, "gradient_free", state.gradient_free->state());
  }
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

void restore_model(const Reader& reader, const TrainState& state) {
  const torch::nn::Module& module = *state.model.module();
  if (state.sharded != nullptr) {
    engine::restore_weight_parts(reader, module, *state.sharded);
  } else {
    engine::restore_weights(reader, module);
  }
}

void restore_optimizer(const Reader& reader, const Json& metadata, TrainState& state) {
  if (state.optimizer != nullptr) {
    if (!metadata.contains("optimizer")) {
      throw ConfigError("train", fmt::format("the checkpoint '{}' holds no optimizer with gradients",
                                             reader.folder().string()));
    }
    if (state.sharded != nullptr) {
      engine::restore_optimizer_parts(reader, *state.sharded);
    } else {
      engine::restore_optimizer(reader, *state.model.module(), *state.optimizer);
    }
  } else {
    state.gradient_free->load_state(engine::read_section(reader, "gradient_free"));
  }
}

void restore_engine(const Reader& reader, TrainState& state) {
  if (state.deepspeed == nullptr) return;
  state.deepspeed->load_state(reader.metadata().value(engine::kSection, Json::object()), reader.step());
}

// Of another program: it tells nothing of epochs and data, which begin anew.
void restore_imported(const Reader& reader, TrainState& state) {
  const Json& metadata = reader.metadata();
  const std::string folder = reader.folder().string();
  if (!metadata.contains("optimizer")) {
    base::log_info("train", "'{}' holds weights alone: training starts with them", folder);
    return;
  }
  restore_optimizer(reader, metadata, state);
  if (state.scaler != nullptr && metadata.contains("scaler")) state.scaler->load_state(metadata.at("scaler"));
  restore_engine(reader, state);
  state.result.step = reader.step();
  base::log_info("train", "'{}' was imported: training goes on from its step {}, and its data begin anew",
                 folder, state.result.step);
}

void restore_random_streams(const Reader& reader, const TrainState& state, const World& world,
                            uint64_t seed) {
  const std::string own = engine::name_under("random", std::to_string(world.rank()));
  if (reader.manifest().world_size == world.size() && reader.has(own)) {
    set_random_state(tensor_bytes(reader.read(own)), world.device());
  } else {
    seed_stream(seed, state.result.step, world.rank());
  }
}

}  // namespace

Snapshot take_snapshot(const TrainState& state, const World& world, const std::string& config) {
  Snapshot snapshot;
  snapshot.step = state.result.step;
  snapshot.epoch = state.epochs_done;
  snapshot.world_size = world.size();
  const std::vector<std::string> streams =
      world.communicator().all_gather_bytes(random_state(world.device()));
  Json epoch_sums = state.sums.totals(world.communicator());
  if (state.sharded != nullptr) {
    engine::add_parts(snapshot, *state.model.module(), *state.sharded, world.is_main());
  } else if (world.is_main()) {
    add_whole(snapshot, state);
  }
  if (!world.is_main()) return snapshot;  // rank 0 has what is not divided
  Json& metadata = snapshot.metadata;
  if (state.scaler != nullptr) metadata["scaler"] = state.scaler->state();
  if (state.deepspeed != nullptr) metadata[engine::kSection] = state.deepspeed->state();
  if (state.average != nullptr) engine::add_section(snapshot, "average", state.average->state());
  for (size_t rank = 0; rank < streams.size(); ++rank) {
    snapshot.pieces.push_back(
        TensorPiece::whole(engine::name_under("random", std::to_string(rank)), bytes_tensor(streams[rank])));
  }
  metadata["data"] = data_position(state.data);
  metadata["epoch_sums"] = std::move(epoch_sums);
  metadata["stopped"] = state.stopped;
  metadata["callbacks"] = callback_states(state.callbacks);
  metadata["iteration"] = state.result.iteration;
  metadata["epochs_done"] = state.epochs_done;
  metadata["metrics"] = numbers(state.result.metrics);
  metadata["best_validation"] = exact_number(state.best_validation);
  metadata["best_saved"] = exact_number(state.best_saved);
  metadata["config"] = Json::parse(config);
  return snapshot;
}

void restore_snapshot(const Reader& reader, TrainState& state, const World& world, uint64_t seed) {
  const Json& metadata = reader.metadata();
  restore_model(reader, state);
  if (!metadata.contains("epochs_done")) {
    restore_imported(reader, state);
    return;
  }
  restore_optimizer(reader, metadata, state);
  if (state.scaler != nullptr && metadata.contains("scaler")) state.scaler->load_state(metadata.at("scaler"));
  restore_engine(reader, state);
  if (state.average != nullptr) {
    const NamedTensors average = engine::read_section(reader, "average");
    if (!average.empty()) state.average->load_state(average);
  }
  state.result.step = reader.step();
  metadata.at("iteration").get_to(state.result.iteration);
  for (const auto& [name, value] : metadata.at("metrics").items()) {
    state.result.metrics[name] = exact_number_of(value);
  }
  metadata.at("epochs_done").get_to(state.epochs_done);
  // Who asks for more epochs than were asked for then wants it to go on.
  const bool same_end = metadata.at("config").value("max_iter", -1) == state.max_iter;
  state.stopped = same_end ? metadata.value("stopped", "") : "";
  state.best_validation = exact_number_of(metadata.at("best_validation"));
  state.best_saved =
      exact_number_of(metadata.at(metadata.contains("best_saved") ? "best_saved" : "best_validation"));
  restore_data(metadata.at("data"), state.data);
  // The sums of all ranks, once.
  if (world.is_main()) state.sums.load_totals(metadata.at("epoch_sums"));
  restore_callbacks(metadata.at("callbacks"), state.callbacks);
  restore_random_streams(reader, state, world, seed);
}

}  // namespace lockstep::train
