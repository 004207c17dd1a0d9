#include "cli/plan/text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <lockstep/error.h>

#include <lockstep/json.h>
#include <algorithm>
#include <array>
#include <cmath>

#include "cli/ckpt/text.h"

namespace lockstep::cli::plan {
namespace {

using ckpt::dtype_text;
using ckpt::table_text;

constexpr const char* kMeasured =
    "measured: the peak of a forward and a backward of one sample and of two on this CPU, beside the states";

// Where there are no bytes of activations: why.
const char* why_unknown(const Answer& answer) {
  return answer.activations_asked ? "unknown: a file has no forward" : "not measured: --no-activations";
}

std::string bytes_text(int64_t bytes) {
  constexpr std::array<const char*, 5> kUnits = {"B", "kB", "MB", "GB", "TB"};
  auto value = static_cast<double>(bytes);
  size_t unit = 0;
  for (; value >= 1000 && unit + 1 < kUnits.size(); ++unit) value /= 1000;
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.2f} {}", value, kUnits.at(unit));
}

std::string stage_table(const Answer& answer) {
  std::vector<std::vector<std::string>> rows = {{"stage", "parameters", "gradients", "master", "optimizer",
                                                 "buffers", "activations", "other", "total"}};
  if (!answer.autocast.empty()) rows.front().insert(rows.front().begin() + 6, "casts");
  if (answer.memory_bytes) rows.front().emplace_back("fits");
  for (const Answer::Stage& stage : answer.stages) {
    const ShardedModel::Memory& memory = stage.plan.memory;
    rows.push_back({std::to_string(stage.stage), bytes_text(memory.parameters), bytes_text(memory.gradients),
                    bytes_text(memory.master), bytes_text(memory.optimizer), bytes_text(memory.buffers),
                    answer.activation_bytes ? bytes_text(*answer.activation_bytes) : "?",
                    bytes_text(stage.plan.other_bytes), bytes_text(answer.total(stage))});
    if (!answer.autocast.empty()) rows.back().insert(rows.back().begin() + 6, bytes_text(memory.casts));
    if (answer.memory_bytes) rows.back().emplace_back(answer.fits(stage) ? "yes" : "no");
  }
  return table_text(rows, std::vector<bool>(rows.front().size(), true));
}

std::string bucket_table(const Answer::Stage& stage) {
  std::vector<std::vector<std::string>> rows = {
      {"bucket", "dtype", "elements", "padding", "a rank's part", "whole", "unit", "group", "parameters"}};
  for (size_t i = 0; i < stage.plan.buckets.size(); ++i) {
    const ZeroPlan::Bucket& bucket = stage.plan.buckets[i];
    const std::string others =
        bucket.parameters.size() > 1 ? fmt::format(" and {} more", bucket.parameters.size() - 1) : "";
    rows.push_back({std::to_string(i), dtype_text(bucket.dtype), std::to_string(bucket.elements),
                    std::to_string(bucket.padding), std::to_string(bucket.part),
                    bucket.resident ? "always" : "when needed",
                    bucket.unit == 0 ? "-" : std::to_string(bucket.unit), std::to_string(bucket.group),
                    bucket.parameters.front() + others});
  }
  return table_text(rows, {true, false, true, true, true, false, true, true, false});
}

std::string verdict(const Answer& answer) {
  const std::string memory = bytes_text(*answer.memory_bytes);
  for (const Answer::Stage& stage : answer.stages) {
    if (answer.fits(stage)) {
      return fmt::format("Stage {} is the first that fits into {}: {} a rank.\n", stage.stage, memory,
                         bytes_text(answer.total(stage)));
    }
  }
  return fmt::format(
      "No stage of these fits into {}: more ranks, a smaller batch, --activation-checkpointing "
      "or a smaller model.\n",
      memory);
}

}  // namespace

int64_t Answer::total(const Stage& stage) const {
  return stage.plan.memory.total() + stage.plan.other_bytes + activation_bytes.value_or(0);
}

std::string text_of(const Answer& answer) {
  const int64_t elements = answer.stages.front().plan.elements;
  std::string text =
      fmt::format("{}: {} trained parameters, {}, {} rank(s), {} samples a rank, {}\n", answer.model,
                  elements, answer.precision, answer.world, answer.batch_size, answer.optimizer);
  if (answer.precision != "fp32") {
    text += fmt::format("Parameters and gradients in {}, masters in float32: a training with --dtype {}.\n",
                        answer.precision, answer.precision == "bf16" ? "bfloat16" : "float16");
  }
  if (!answer.autocast.empty()) {
    text += fmt::format(
        "Operations in {0}, with copies of the weights: a training with --precision {0}. With --dtype {1} in "
        "its "
        "place there are no copies.\n",
        answer.autocast, answer.autocast == "bf16" ? "bfloat16" : "float16");
  }
  text += "\nBytes of each rank:\n\n" + stage_table(answer);
  text += answer.activation_bytes
              ? fmt::format("\nActivations are {}{}.\n", kMeasured,
                            answer.activation_checkpointing ? ", with activation checkpointing" : "")
              : fmt::format("\nActivations are {}.\n", why_unknown(answer));
  if (answer.memory_bytes) text += verdict(answer);
  for (const Answer::Stage& stage : answer.stages) {
    text += fmt::format("\nBuckets at stage {}:\n\n{}", stage.stage, bucket_table(stage));
  }
  return text;
}

std::string json_of(const Answer& answer) {
  Json result = {{"model", answer.model},         {"parameters", answer.stages.front().plan.elements},
                 {"precision", answer.precision}, {"optimizer", answer.optimizer},
                 {"world", answer.world},         {"batch_size", answer.batch_size}};
  result["activations"] = {{"bytes", answer.activation_bytes},
                           {"method", answer.activation_bytes ? kMeasured : why_unknown(answer)},
                           {"checkpointing", answer.activation_checkpointing}};
  if (answer.memory_bytes) result["memory"] = *answer.memory_bytes;
  result["stages"] = Json::array();
  for (const Answer::Stage& stage : answer.stages) {
    const ShardedModel::Memory& memory = stage.plan.memory;
    Json own = {{"stage", stage.stage},
                {"bytes",
                 {{"parameters", memory.parameters},
                  {"gradients", memory.gradients},
                  {"master", memory.master},
                  {"optimizer", memory.optimizer},
                  {"buffers", memory.buffers},
                  {"casts", memory.casts},
                  {"other", stage.plan.other_bytes},
                  {"total", answer.total(stage)}}}};
    if (answer.memory_bytes) own["fits"] = answer.fits(stage);
    own["buckets"] = Json::array();
    for (const ZeroPlan::Bucket& bucket : stage.plan.buckets) {
      own["buckets"].push_back({{"dtype", dtype_text(bucket.dtype)},
                                {"elements", bucket.elements},
                                {"padding", bucket.padding},
                                {"part", bucket.part},
                                {"resident", bucket.resident},
                                {"unit", bucket.unit},
                                {"group", bucket.group},
                                {"parameters", bucket.parameters}});
    }
    result["stages"].push_back(std::move(own));
  }
  return result.dump({.indent = 2, .order = Json::Order::kAsAdded}) + "\n";
}

int64_t parse_bytes(const std::string& text) {
  constexpr std::array<std::pair<const char*, double>, 9> kUnits = {{{"", 1},
                                                                     {"B", 1},
                                                                     {"kB", 1e3},
                                                                     {"KB", 1e3},
                                                                     {"MB", 1e6},
                                                                     {"GB", 1e9},
                                                                     {"TB", 1e12},
                                                                     {"MiB", 1 << 20},
                                                                     {"GiB", 1 << 30}}};
  size_t digits = 0;
  double number = 0;
  try {
    number = std::stod(text, &digits);
  } catch (const std::exception&) {
    digits = 0;
  }
  const std::string unit = text.substr(std::min(text.find_first_not_of(' ', digits), text.size()));
  for (const auto& [name, factor] : kUnits) {
    if (digits > 0 && unit == name && number > 0 && std::isfinite(number) && number * factor < 1e18) {
      return static_cast<int64_t>(number * factor);
    }
  }
  throw ConfigError("plan", fmt::format("not an amount of memory, write 80GB or 24GiB: '{}'", text));
}

}  // namespace lockstep::cli::plan
