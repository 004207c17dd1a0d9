#pragma once

#include <cstdint>
#include <string>

// The subcommands of `lockstep ckpt`, one source each. They print to standard output and
// return the exit status; what they cannot do is a ConfigError. A path of `inspect`,
// `export` and `diff` is a checkpoint's folder, a run's (its newest one), a safetensors
// file or a file of Python's torch.save.
namespace lockstep::cli::ckpt {

struct ListOptions {
  std::string folder;
  std::string best = "saved";  // by what: the mark of its run, or the metric (min or max)
  bool json = false;
};
int list(const ListOptions& options);

struct InspectOptions {
  std::string path;
  bool json = false;
};
int inspect(const InspectOptions& options);

struct VerifyOptions {
  std::string path;  // a checkpoint, all checkpoints of a run, or a file
};
int verify(const VerifyOptions& options);

struct ExportOptions {
  std::string path;
  std::string to;               // *.safetensors, *.pt or *.pth
  std::string prefix;           // put before each name
  std::string what = "model";   // model, average or all
  std::string dtype = "saved";  // or what floating-point weights become
  std::string script;           // a TorchScript module to fill and write, instead of a state dict
};
int export_weights(const ExportOptions& options);

struct ImportOptions {
  std::string file;  // or a folder of DeepSpeed's
  std::string to;    // a folder of checkpoints that has none yet; of DeepSpeed's also a weights file
  // Of DeepSpeed's folders:
  std::string tag;              // empty: the latest
  std::string what = "all";     // all, or model: the weights
  std::string dtype = "saved";  // saved, or float32: 16-bit weights as their masters
  std::string optimizer;        // Adam or AdamW, where the files do not say
};
int import_weights(const ImportOptions& options);

struct DiffOptions {
  std::string a;
  std::string b;
  std::string what = "model";
  double rtol = 0;
  double atol = 0;
  bool json = false;
};
int diff(const DiffOptions& options);

}  // namespace lockstep::cli::ckpt
