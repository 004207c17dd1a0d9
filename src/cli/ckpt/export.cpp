#include <fmt/format.h>
#include <lockstep/error.h>
#include <lockstep/script_model.h>
#include <lockstep/weights.h>
#include <torch/torch.h>

#include <filesystem>

#include "checkpoint/weights.h"
#include "cli/commands.h"
#include "cli/text.h"

namespace lockstep::cli::ckpt {
namespace {

struct ExportOptions {
  std::string path;
  std::string to;               // *.safetensors, *.pt or *.pth
  std::string prefix;           // put before each name
  std::string what = "model";   // model, average or all
  std::string dtype = "saved";  // or what floating-point weights become
  std::string script;           // a TorchScript module to fill and write, instead of a state dict
};

void check_target(const std::string& to) {
  const std::string suffix = std::filesystem::path(to).extension();
  if (suffix != ".safetensors" && suffix != ".pt" && suffix != ".pth") {
    throw ConfigError("ckpt", fmt::format("--to must end with .safetensors, .pt or .pth: '{}'", to));
  }
}

int64_t total_bytes(const NamedTensors& tensors) {
  int64_t bytes = 0;
  for (const auto& entry : tensors) bytes += static_cast<int64_t>(entry.second.nbytes());
  return bytes;
}

// Flags that do not go together, before a file is read.
void check_together(const ExportOptions& options) {
  for (const auto& [is_given, flag] : {std::pair(!options.prefix.empty(), "--prefix"),
                                       {options.what != "model", "--what"},
                                       {options.dtype != "saved", "--dtype"}}) {
    if (options.script.empty() || !is_given) continue;
    throw ConfigError("ckpt", fmt::format("--script takes the model as it is: leave out {}", flag));
  }
  if (options.dtype != "saved" && options.what == "all") {
    throw ConfigError("ckpt", "--dtype is for the weights of the model: leave out --what all, or --dtype");
  }
}

// Code of the one file, weights of the other.
void export_script(const ExportOptions& options, const std::filesystem::path& from) {
  ScriptModel model(options.script);
  load_weights(*model, from);
  model->save_script(options.to);
  fmt::print("{}: the module of {} with the weights of {}\n", options.to, options.script, from.string());
}

NamedTensors tensors_of(const checkpoint::WeightsSource& source, const ExportOptions& options) {
  const bool is_average = options.what == "average";
  if (options.dtype == "saved" && is_average) return checkpoint::read_average(source, std::nullopt);
  if (options.dtype == "saved") {
    return checkpoint::read_tensors(
        source, options.what == "all" ? checkpoint::WhichTensors::kAll : checkpoint::WhichTensors::kModel);
  }
  const auto dtype = options.dtype == "float32"   ? at::kFloat
                     : options.dtype == "float16" ? at::kHalf
                                                  : at::kBFloat16;
  if (is_average) return checkpoint::read_average(source, dtype);
  return checkpoint::read_weights_as(source, dtype);
}

int export_weights(const ExportOptions& options) {
  check_target(options.to);
  check_together(options);
  const checkpoint::WeightsSource source = checkpoint::find_weights(options.path);
  if (!options.script.empty()) {
    export_script(options, source.path);
    return kExitSuccess;
  }
  NamedTensors tensors = tensors_of(source, options);
  for (auto& entry : tensors) entry.first.insert(0, options.prefix);
  checkpoint::write_weights(options.to, tensors);
  fmt::print("{}: {} tensors, {}, of {}\n", options.to, tensors.size(), size_text(total_bytes(tensors)),
             source.path.string());
  return kExitSuccess;
}

}  // namespace
}  // namespace lockstep::cli::ckpt

namespace lockstep::cli {

int run_ckpt_export(int argc, const char* const* argv) {
  ckpt::ExportOptions options;
  config::OptionTable("Writes weights to a file that Python opens.", config::kNoVariables)
      .add_argument("PATH", options.path, "checkpoint, run, .safetensors or .pt file", {.required = true})
      .add("to", options.to, "file to write: *.safetensors, *.pt or *.pth", {.required = true})
      .add("prefix", options.prefix, "text before each name: module. for a DistributedDataParallel")
      .add("what", options.what,
           "model: the weights; average: their average of a run with ema_decay, by which it was validated; "
           "all: every tensor of the checkpoint",
           {.choices = {"model", "average", "all"}})
      .add("dtype", options.dtype,
           "of the weights: as saved, or converted; float32: the masters behind 16-bit ones",
           {.choices = {"saved", "float32", "bfloat16", "float16"}})
      .add("script", options.script,
           "TorchScript file that you trust, its code is executed: fill this module and write it")
      .parse(argc, argv);
  return ckpt::export_weights(options);
}

}  // namespace lockstep::cli
