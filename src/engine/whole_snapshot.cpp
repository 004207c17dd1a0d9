#include "engine/whole_snapshot.h"

#include <lockstep/named_tensors.h>
#include <lockstep/optimizer_state.h>
#include <torch/torch.h>

#include "engine/snapshot_names.h"
#include "interop/match_weights.h"
#include "interop/weights_file.h"

namespace lockstep::engine {

using checkpoint::Reader;
using checkpoint::Snapshot;
using checkpoint::TensorPiece;

void add_weights(Snapshot& snapshot, const torch::nn::Module& module) {
  for (const auto& [name, tensor] : interop::weights_of(module)) {
    snapshot.pieces.push_back(TensorPiece::whole(std::string(interop::kModelPrefix) + name, tensor));
  }
}

void add_optimizer(Snapshot& snapshot, const torch::nn::Module& module,
                   const torch::optim::Optimizer& optimizer) {
  const OptimizerState state = optimizer_state(optimizer, named_parameters(module));
  add_section(snapshot, "optimizer", state.tensors);
  snapshot.metadata["optimizer"] = Json::parse(state.values);
}

void restore_weights(const Reader& reader, const torch::nn::Module& module) {
  const SavedWeights saved = saved_weights(reader);
  const interop::WeightMatch match = match_saved(reader, interop::weights_of(module), saved);
  const torch::NoGradGuard no_grad;
  std::vector<checkpoint::Target> targets;
  for (const auto& pair : match.pairs) {
    targets.push_back({.name = saved.name_in_file.at(pair.from.unsafeGetTensorImpl()), .out = pair.to});
  }
  reader.read(targets);
}

void restore_optimizer(const Reader& reader, const torch::nn::Module& module,
                       torch::optim::Optimizer& optimizer) {
  load_optimizer_state(optimizer, named_parameters(module),
                       {read_section(reader, "optimizer"), reader.metadata().at("optimizer").dump()});
}

}  // namespace lockstep::engine
