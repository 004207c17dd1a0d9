#include <fmt/format.h>
#include <lockstep/error.h>
#include <sys/resource.h>
#include <torch/torch.h>

#include <filesystem>

#include "checkpoint/catalog.h"
#include "checkpoint/compare_weights.h"
#include "checkpoint/deepspeed/deepspeed_checkpoint.h"
#include "checkpoint/deepspeed/shards.h"
#include "checkpoint/store.h"
#include "checkpoint/weights.h"
#include "cli/commands.h"
#include "cli/text.h"

namespace lockstep::cli::ckpt {
namespace {

struct ImportOptions {
  std::string file;  // or a folder of DeepSpeed's
  std::string to;    // a folder of checkpoints that has none yet; of DeepSpeed's also a weights file
  // Of DeepSpeed's folders:
  std::string tag;              // empty: the latest
  std::string what = "all";     // all, or model: the weights
  std::string dtype = "saved";  // saved, or float32: 16-bit weights as their masters
  std::string optimizer;        // Adam or AdamW, where the files do not say
};

bool is_weights_file(const std::string& to) {
  const std::string suffix = std::filesystem::path(to).extension();
  return suffix == ".safetensors" || suffix == ".pt" || suffix == ".pth";
}

// Weights alone, all at once: files of other programs are written so.
int64_t write_file(const checkpoint::DeepSpeedCheckpoint& imported, const std::string& to) {
  NamedTensors weights;
  int64_t bytes = 0;
  for (const auto& tensor : imported.tensors) {
    weights.emplace_back(tensor.name.substr(checkpoint::kModelPrefix.size()), tensor.read());
    bytes += tensor.bytes;
  }
  checkpoint::write_weights(to, weights);
  return bytes;
}

// Of each rank a file stays open, at stage 3 two: large jobs have more than the usual limit.
void raise_open_files() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

int import_deepspeed(const ImportOptions& options) {
  raise_open_files();
  const bool to_file = is_weights_file(options.to);
  const checkpoint::DeepSpeedCheckpoint imported = checkpoint::open_deepspeed_checkpoint(
      options.file, {.tag = options.tag,
                     .weights_alone = options.what == "model" || to_file,
                     .float32 = options.dtype == "float32",
                     .optimizer = options.optimizer});
  int64_t bytes = 0;
  for (const auto& tensor : imported.tensors) bytes += tensor.bytes;
  std::filesystem::path written = options.to;
  if (to_file) {
    write_file(imported, options.to);
  } else {
    written = checkpoint::save_checkpoint(imported, options.to);
  }
  fmt::print("{}: {} tensors, {}, of {}: stage {}, {} rank{}, step {}\n", written.string(),
             imported.tensors.size(), size_text(bytes), imported.folder.string(), imported.stage,
             imported.ranks, imported.ranks == 1 ? "" : "s", imported.step);
  for (const std::string& what : imported.left_behind) fmt::print("left behind: {}\n", what);
  return kExitSuccess;
}

int import_file(const ImportOptions& options) {
  const NamedTensors tensors = checkpoint::read_weights(options.file);
  const size_t wrapper = checkpoint::wrapper_prefix(tensors).size();
  checkpoint::Snapshot snapshot;
  snapshot.metadata = {{"weights_only", true}, {"imported_from", options.file}};
  int64_t bytes = 0;
  for (const auto& [name, tensor] : tensors) {
    snapshot.pieces.push_back(
        checkpoint::TensorPiece::whole(std::string(checkpoint::kModelPrefix) + name.substr(wrapper), tensor));
    bytes += static_cast<int64_t>(tensor.nbytes());
  }
  checkpoint::Store store(options.to);
  const checkpoint::Entry entry = store.save(snapshot);
  fmt::print("{}: {} tensors, {}\n", entry.path.string(), tensors.size(), size_text(bytes));
  return kExitSuccess;
}

int import_weights(const ImportOptions& options) {
  const bool of_deepspeed = !options.tag.empty() || checkpoint::is_deepspeed_folder(options.file);
  const bool to_file = of_deepspeed && is_weights_file(options.to);
  if (!to_file && !checkpoint::list(options.to).empty()) {
    throw ConfigError("ckpt",
                      fmt::format("'{}' already has checkpoints, from which a run would resume: choose "
                                  "another folder",
                                  options.to));
  }
  return of_deepspeed ? import_deepspeed(options) : import_file(options);
}

}  // namespace
}  // namespace lockstep::cli::ckpt

namespace lockstep::cli {

int run_ckpt_import(int argc, const char* const* argv) {
  ckpt::ImportOptions options;
  config::OptionTable(
      "Makes a checkpoint of a file's weights, or of a checkpoint of DeepSpeed's, from which a trainer "
      "resumes.",
      config::kNoVariables)
      .add_argument("FILE", options.file, ".pt or .safetensors file of Python's, or a folder of DeepSpeed's",
                    {.required = true})
      .add("to", options.to,
           "folder of checkpoints to make; of DeepSpeed's also *.safetensors, *.pt or *.pth",
           {.required = true})
      .add("tag", options.tag, "DeepSpeed: which checkpoint of the folder; left out: what `latest` names")
      .add("what", options.what, "DeepSpeed: all, or the weights of the model alone",
           {.choices = {"model", "all"}})
      .add("dtype", options.dtype, "DeepSpeed: 16-bit weights as saved, or as the float32 ones behind them",
           {.choices = {"saved", "float32"}})
      .add("optimizer", options.optimizer, "DeepSpeed: which one it is, where the files do not say",
           {.choices = {"", "Adam", "AdamW"}})
      .parse(argc, argv);
  return ckpt::import_weights(options);
}

}  // namespace lockstep::cli
