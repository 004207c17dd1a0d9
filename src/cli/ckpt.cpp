#include "cli/ckpt.h"

#include <lockstep/error.h>

#include <memory>

#include "cli/ckpt/commands.h"

namespace lockstep::cli {
namespace {

// A subcommand whose options live as long as the application.
template <typename Options>
Options& declare(CLI::App& ckpt, CLI::App** command, const char* name, const char* help, int* status,
                 int (*run)(const Options&)) {
  auto options = std::make_shared<Options>();
  *command = ckpt.add_subcommand(name, help);
  (*command)->callback([options, status, run] { *status = run(*options); });
  return *options;
}

void add_looking(CLI::App& ckpt, int* status) {
  CLI::App* command = nullptr;
  auto& list = declare(ckpt, &command, "ls", "the checkpoints of a run", status, ckpt::list);
  command->add_option("folder", list.folder, "the run's folder, or its folder of checkpoints")->required();
  command
      ->add_option("--best", list.best,
                   "which one is the best: as its run saved it, or the one with the least or greatest metric")
      ->check(CLI::IsMember({"saved", "min", "max"}))
      ->capture_default_str();
  command->add_flag("--json", list.json, "print JSON");

  auto& inspect =
      declare(ckpt, &command, "inspect", "what a checkpoint or a file holds", status, ckpt::inspect);
  command->add_option("path", inspect.path, "checkpoint, run, .safetensors or .pt file")->required();
  command->add_flag("--json", inspect.json, "print JSON");

  auto& verify = declare(ckpt, &command, "verify", "compare every byte with the checksums; status 1: broken",
                         status, ckpt::verify);
  command->add_option("path", verify.path, "checkpoint, run (all of its checkpoints) or file")->required();
}

void add_moving(CLI::App& ckpt, int* status) {
  CLI::App* command = nullptr;
  auto& out = declare(ckpt, &command, "export", "write weights to a file that Python opens", status,
                      ckpt::export_weights);
  command->add_option("path", out.path, "checkpoint, run, .safetensors or .pt file")->required();
  command->add_option("--to", out.to, "file to write: *.safetensors, *.pt or *.pth")->required();
  command->add_option("--prefix", out.prefix, "text before each name: module. for a DistributedDataParallel");
  command
      ->add_option("--what", out.what,
                   "model: the weights; average: their average of a run with ema_decay, by which it was "
                   "validated; all: every tensor of the checkpoint")
      ->check(CLI::IsMember({"model", "average", "all"}))
      ->capture_default_str();
  command
      ->add_option("--dtype", out.dtype,
                   "of the weights: as saved, or converted; float32: the masters behind 16-bit ones")
      ->check(CLI::IsMember({"saved", "float32", "bfloat16", "float16"}))
      ->capture_default_str();
  command->add_option("--script", out.script,
                      "TorchScript file that you trust, its code is executed: fill this module and write it");

  auto& in = declare(
      ckpt, &command, "import",
      "make a checkpoint of a file's weights, or of a checkpoint of DeepSpeed's, for a trainer to go on from",
      status, ckpt::import_weights);
  command->add_option("file", in.file, ".pt or .safetensors file of Python's, or a folder of DeepSpeed's")
      ->required();
  command
      ->add_option("--to", in.to,
                   "folder of checkpoints to make; of DeepSpeed's also *.safetensors, *.pt or *.pth")
      ->required();
  command->add_option("--tag", in.tag, "DeepSpeed: which checkpoint of the folder; else what `latest` says");
  command->add_option("--what", in.what, "DeepSpeed: all, or the weights of the model alone")
      ->check(CLI::IsMember({"model", "all"}))
      ->capture_default_str();
  command
      ->add_option("--dtype", in.dtype,
                   "DeepSpeed: 16-bit weights as saved, or as the float32 ones behind them")
      ->check(CLI::IsMember({"saved", "float32"}))
      ->capture_default_str();
  command->add_option("--optimizer", in.optimizer, "DeepSpeed: which one it is, where the files do not say")
      ->check(CLI::IsMember({"Adam", "AdamW"}));
}

void add_comparing(CLI::App& ckpt, int* status) {
  CLI::App* command = nullptr;
  auto& diff = declare(ckpt, &command, "diff", "compare two; status 1: they differ", status, ckpt::diff);
  command->add_option("a", diff.a, "checkpoint, run, .safetensors or .pt file")->required();
  command->add_option("b", diff.b, "the same")->required();
  command->add_option("--what", diff.what, "model: the weights; all: every tensor of a checkpoint")
      ->check(CLI::IsMember({"model", "all"}))
      ->capture_default_str();
  command->add_option("--rtol", diff.rtol, "values may differ by this part of b's")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  command->add_option("--atol", diff.atol, "and by this much")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  command->add_flag("--json", diff.json, "print JSON");
}

}  // namespace

void add_ckpt(CLI::App& app, int* status) {
  CLI::App* ckpt = app.add_subcommand("ckpt", "checkpoints: list, inspect, verify, export, import, compare");
  ckpt->require_subcommand(1);
  add_looking(*ckpt, status);
  add_moving(*ckpt, status);
  add_comparing(*ckpt, status);
}

}  // namespace lockstep::cli
