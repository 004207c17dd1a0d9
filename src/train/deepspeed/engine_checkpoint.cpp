// Saves and loads the state of an engine.

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <lockstep/deepspeed.h>
#include <lockstep/error.h>
#include <lockstep/weights.h>
#include <torch/torch.h>

#include <lockstep/json.h>

#include "base/log.h"
#include "checkpoint/catalog.h"
#include "checkpoint/reader.h"
#include "checkpoint/store.h"
#include "checkpoint/weights.h"
#include "comm/agree.h"
#include "config/deepspeed/failure.h"
#include "parallel/save_shards.h"
#include "train/deepspeed/engine_impl.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
using TagValidation = DeepSpeedConfig::Checkpoint::TagValidation;

// Runs `work` on rank 0 and returns its result on all ranks. If it throws, all throw a ConfigError.
std::string result_of_main_rank(const Communicator& group, const std::function<std::string()>& work) {
  const comm::RankOutcome outcome = comm::outcome_of_main_rank(group, work);
  if (outcome.failed) throw ConfigError("engine", outcome.text);
  return outcome.text;
}

fs::path tag_folder(const fs::path& folder, const std::string& tag) {
  if (folder.empty()) throw ConfigError("engine", "a checkpoint needs a folder: the path is empty");
  if (tag.empty()) return folder;
  if (tag == "." || tag == ".." || tag.find('/') != std::string::npos) {
    throw ConfigError("engine", fmt::format("a tag is the name of one folder: '{}'", tag));
  }
  return folder / tag;
}

void compare_tags(const DeepSpeedConfig& config, const Communicator& group, const std::string& tag) {
  if (config.checkpoint.tag_validation == TagValidation::kIgnore) return;
  const std::vector<std::string> tags = group.all_gather_bytes(tag);
  if (std::all_of(tags.begin(), tags.end(), [&](const std::string& other) { return other == tags[0]; }))
    return;
  const std::string sentence = fmt::format(
      "the ranks save under different tags, rank 0 first: '{}'; give all the same", fmt::join(tags, "', '"));
  if (config.checkpoint.tag_validation == TagValidation::kFail) {
    deepspeed::fail_at(config, "checkpoint.tag_validation", sentence);
  }
  if (group.rank() == 0) base::log_warning("engine", "{}; rank 0's is taken", sentence);
}

Json parse_client_state(const std::string& text) {
  try {
    return Json::parse(text);
  } catch (const JsonError& error) {
    throw ConfigError("engine", fmt::format("client_state is no JSON: {}", error.what()));
  }
}

}  // namespace

Json EngineCore::Impl::state() const {
  Json state = {{"micro_steps", micro_steps},
                {"global_steps", global_steps},
                {"global_samples", global_samples},
                {"config", config.to_json()}};
  if (scaler) state["scaler"] = scaler->state();
  if (schedule) state["schedule"] = schedule->state();
  return state;
}

void EngineCore::Impl::load_state(const Json& state, int64_t step, bool with_schedule) {
  if (scaler && state.contains("scaler")) scaler->load_state(state.at("scaler"));
  if (schedule && with_schedule && state.contains("schedule")) {
    schedule->load_state(state.at("schedule"));
  } else if (schedule) {
    schedule->set_step(schedule->step());  // the loaded optimizer has its own rates
  }
  global_steps = state.value("global_steps", step);
  // Another configuration may accumulate another number of batches, so a new step begins here.
  micro_steps = global_steps * batch.accumulation_steps;
  global_samples = state.value("global_samples", int64_t{0});
}

fs::path EngineCore::save_checkpoint(const fs::path& folder, const SaveCheckpointOptions& options) {
  Impl& impl = *impl_;
  if (impl.backwards > 0) {
    throw ConfigError(
        "engine",
        fmt::format("save_checkpoint() was called after {} backwards of a step that is not done, whose "
                    "gradients would be lost: call it after a step() that updates",
                    impl.backwards));
  }
  const fs::path place = tag_folder(folder, options.tag);
  const Json client_state = parse_client_state(options.client_state);
  impl.communicator.meet("save_checkpoint()", options.patience);
  compare_tags(impl.config, impl.communicator, options.tag);

  checkpoint::Snapshot snapshot;
  snapshot.step = impl.global_steps;
  snapshot.world_size = impl.communicator.size();
  impl.model->add_to(snapshot, *impl.optimizer);
  snapshot.metadata[deepspeed::kSection] = impl.state();
  snapshot.metadata[deepspeed::kSection]["client_state"] = client_state;

  std::unique_ptr<checkpoint::Store> store;
  result_of_main_rank(impl.communicator, [&] {
    checkpoint::StoreOptions keep_all;
    keep_all.rotation = {.keep_last = 0, .keep_best = 0};
    store = std::make_unique<checkpoint::Store>(place, keep_all);
    return std::string();
  });
  const checkpoint::Entry entry = parallel::save_shards(impl.communicator, store.get(), snapshot);
  return result_of_main_rank(impl.communicator, [&] { return entry.path.string(); });
}

std::optional<LoadedCheckpoint> EngineCore::load_checkpoint(const fs::path& folder,
                                                            const LoadCheckpointOptions& options) {
  Impl& impl = *impl_;
  const fs::path place = tag_folder(folder, options.tag);
  const fs::path path = result_of_main_rank(impl.communicator, [&] {
    const auto newest = checkpoint::newest_valid(checkpoint::checkpoints_folder(place));
    if (!newest) base::log_warning("engine", "there is no checkpoint to load in '{}'", place.string());
    return newest ? newest->path.string() : std::string();
  });
  if (path.empty()) return std::nullopt;
  const checkpoint::Reader reader(path);
  const Json& metadata = reader.metadata();
  const Json state = metadata.value(deepspeed::kSection, Json::object());
  const LoadedCheckpoint loaded{path, state.value("client_state", Json()).dump()};
  impl.model->zero_grad();
  impl.backwards = 0;
  impl.model->restore_weights(reader);
  if (options.load_module_only) return loaded;
  if (options.load_optimizer_states && metadata.contains("optimizer"))
    impl.model->restore_optimizer(reader, *impl.optimizer);
  impl.load_state(state, reader.step(), options.load_lr_scheduler_states);
  return loaded;
}

bool EngineCore::save_16bit_model(const fs::path& folder, const std::string& file) {
  Impl& impl = *impl_;
  if (impl.config.zero.stage == 3 && !impl.config.zero.gather_16bit_weights_on_model_save) {
    if (impl.communicator.rank() == 0) {
      base::log_warning(
          "engine",
          "no weights were saved: at stage 3 set stage3_gather_16bit_weights_on_model_save to true, or "
          "use `lockstep ckpt export` on a checkpoint");
    }
    return false;
  }
  impl.communicator.meet("save_16bit_model()");
  const std::shared_ptr<void> whole = gather_parameters();
  result_of_main_rank(impl.communicator, [&] {
    fs::create_directories(folder);
    save_weights(*impl.module, folder / file);
    return std::string();
  });
  return true;
}

}  // namespace lockstep
