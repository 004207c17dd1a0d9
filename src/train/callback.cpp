#include <fmt/format.h>
#include <lockstep/callback.h>
#include <lockstep/error.h>
#include <lockstep/trainer.h>

#include <array>

namespace lockstep {

const char* to_string(Stage stage) {
  static constexpr std::array kNames = {"idle",
                                        "train_start",
                                        "train_end",
                                        "train_epoch_start",
                                        "train_epoch_end",
                                        "train_batch_start",
                                        "train_batch_end",
                                        "val_epoch_start",
                                        "val_epoch_end",
                                        "val_batch_start",
                                        "val_batch_end",
                                        "test_batch_start",
                                        "test_batch_end"};
  return kNames[static_cast<size_t>(stage)];
}

Callback::Callback(const CallbackOptions& options) : options_(options) {
  if (options.on == Stage::kIdle) {
    throw ConfigError("train", "a callback needs a stage to be called at: idle is none");
  }
  if (options.called_every < 0) {
    throw ConfigError("train", fmt::format("called_every must be at least 0: {}", options.called_every));
  }
}

Callback::Callback(const CallbackOptions& options, std::function<void(Trainer&)> function)
    : Callback(options) {
  if (!function) throw ConfigError("train", "a callback needs a function, or a class that overrides run()");
  function_ = std::move(function);
}

Callback::~Callback() = default;

void Callback::call(Trainer& trainer, int64_t count) {
  const bool always = options_.on == Stage::kTrainStart || options_.on == Stage::kTrainEnd;
  if (!always && (options_.called_every == 0 || count % options_.called_every != 0)) return;
  if (options_.condition && !options_.condition(trainer)) return;
  if (options_.modify_result) trainer.modify_result(options_.modify_result);
  run(trainer);
}

void Callback::run(Trainer& trainer) {
  if (function_) function_(trainer);
}

}  // namespace lockstep
