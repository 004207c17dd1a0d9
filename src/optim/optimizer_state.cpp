#include <cxxabi.h>
#include <fmt/ranges.h>
#include <lockstep/error.h>
#include <lockstep/optimizer_state.h>
#include <torch/torch.h>

#include <cstring>
#include <functional>
#include <sstream>
#include <unordered_map>

#include "base/check.h"
#include "optim/adam_lbfgs_optimizer.h"
#include "optim/optimizer_fields.h"
#include "optim/optimizer_kinds.h"
#include "optim/saved_state.h"
#include "optim/state_fields.h"

namespace lockstep {
namespace {

using torch::optim::Optimizer;

constexpr auto kArchiveName = "/archive";

using optim::visit_kind;

class Names {
 public:
  explicit Names(const NamedTensors& parameters) {
    for (const auto& [name, tensor] : parameters) names_.emplace(tensor.unsafeGetTensorImpl(), name);
  }

  const std::string& of(const at::Tensor& parameter) const {
    const auto found = names_.find(parameter.unsafeGetTensorImpl());
    if (found == names_.end()) {
      throw ConfigError(
          "optim", fmt::format("a parameter of the optimizer is not among the named ones; its shape: [{}]",
                               fmt::join(parameter.sizes(), ", ")));
    }
    return found->second;
  }

  std::vector<std::string> of(const std::vector<at::Tensor>& parameters) const {
    std::vector<std::string> names;
    for (const at::Tensor& parameter : parameters) names.push_back(of(parameter));
    return names;
  }

 private:
  std::unordered_map<const void*, std::string> names_;
};

// One piece of state: whose it is, and under what name.
struct Slot {
  std::string name;  // "" for LBFGS's, which belongs to all parameters
  at::Tensor key;    // the parameter under which the optimizer keeps it
  at::Tensor like;   // shape, dtype and device of its tensors
};

template <typename Kind>
std::vector<Slot> slots_of(const Optimizer& optimizer, const Names& names) {
  std::vector<Slot> slots;
  if constexpr (Kind::kIsLbfgs) {
    const auto& parameters = optimizer.param_groups()[0].params();
    int64_t total = 0;
    for (const at::Tensor& parameter : parameters) total += parameter.numel();
    slots.push_back({"", parameters[0], at::empty({1}, parameters[0].options()).detach().expand({total})});
  } else {
    for (const auto& group : optimizer.param_groups()) {
      for (const at::Tensor& parameter : group.params())
        slots.push_back({names.of(parameter), parameter, parameter});
    }
  }
  return slots;
}

template <typename Options>
Json save_options(const torch::optim::OptimizerOptions& options) {
  Json values = Json::object();
  optim::for_each_option(static_cast<const Options&>(options),
                         [&](const char* name, const auto& value) { values[name] = optim::to_value(value); });
  return values;
}

template <typename Options>
Options read_options(const torch::optim::OptimizerOptions& current, const Json& values) {
  Options options = static_cast<const Options&>(current);
  optim::for_each_option(options,
                         [&](const char* name, auto& value) { optim::from_value(values.at(name), value); });
  return options;
}

// `part` goes between the name of a parameter and that of a field: "/adam" for an
// optimizer that is a part of another.
template <typename Kind>
Json save_kind(const Kind& kind, const Optimizer& optimizer, const Names& names, const std::string& part,
               NamedTensors& tensors) {
  Json values{{"class", kind.name}, {"groups", Json::array()}, {"state", Json::object()}};
  for (const auto& group : optimizer.param_groups()) {
    values["groups"].push_back({{"parameters", names.of(group.params())},
                                {"options", save_options<typename Kind::Options>(group.options())}});
  }
  for (const Slot& slot : slots_of<Kind>(optimizer, names)) {
    const auto found = optimizer.state().find(slot.key.unsafeGetTensorImpl());
    if (found == optimizer.state().end()) continue;  // has had no gradient yet
    optim::FieldWriter writer(tensors, slot.name + part);
    optim::for_each_state(static_cast<const typename Kind::State&>(*found->second), writer);
    values["state"][slot.name] = writer.values();
  }
  return values;
}

void check_class(const std::string& own, const Json& values) {
  const auto saved = values.at("class").get<std::string>();
  if (saved != own) {
    throw ConfigError(
        "optim",
        fmt::format("the saved state is of another class of optimizer: {} there, {} here", saved, own));
  }
}

void check_groups(const Optimizer& optimizer, const Names& names, const Json& groups) {
  if (groups.size() != optimizer.param_groups().size()) {
    throw ConfigError("optim", fmt::format("the saved optimizer has another number of parameter groups: {} "
                                           "there, {} here",
                                           groups.size(), optimizer.param_groups().size()));
  }
  for (size_t i = 0; i < groups.size(); ++i) {
    const auto saved = groups[i].at("parameters").get<std::vector<std::string>>();
    const auto own = names.of(optimizer.param_groups()[i].params());
    if (saved == own) continue;
    const auto difference = std::mismatch(saved.begin(), saved.end(), own.begin(), own.end());
    throw ConfigError(
        "optim",
        fmt::format("parameter group {} of the saved optimizer has other parameters: {} there, {} here", i,
                    difference.first == saved.end() ? "none more" : *difference.first,
                    difference.second == own.end() ? "none more" : *difference.second));
  }
}

// What is left to do when all has been read and checked: it cannot fail.
using Commit = std::function<void()>;

template <typename Kind>
Commit prepare_kind(const Kind& kind, Optimizer& optimizer, const Names& names, const Json& values,
                    const std::string& part, optim::TensorPool& pool) {
  using Options = typename Kind::Options;
  using State = typename Kind::State;
  check_class(kind.name, values);
  const Json& groups = values.at("groups");
  check_groups(optimizer, names, groups);
  std::vector<Options> options;
  for (size_t i = 0; i < groups.size(); ++i) {
    options.push_back(read_options<Options>(optimizer.param_groups()[i].options(), groups[i].at("options")));
  }
  std::vector<std::pair<void*, State>> states;
  const Json& saved_states = values.at("state");
  for (const Slot& slot : slots_of<Kind>(optimizer, names)) {
    if (!saved_states.contains(slot.name)) continue;
    optim::FieldReader reader(saved_states[slot.name], pool, slot.name + part, slot.like, Kind::kIsLbfgs);
    State& state = states.emplace_back(slot.key.unsafeGetTensorImpl(), State()).second;
    optim::for_each_state(state, reader);
  }
  return [&optimizer, options = std::move(options), states = std::move(states)] {
    for (size_t i = 0; i < options.size(); ++i) {
      static_cast<Options&>(optimizer.param_groups()[i].options()) = options[i];
    }
    optimizer.state().clear();
    for (const auto& [key, state] : states) optimizer.state()[key] = std::make_unique<State>(state);
  };
}

Json save_hybrid(const optim::AdamLbfgs& hybrid, const Names& names, NamedTensors& tensors) {
  Json values{{"class", "AdamLbfgs"},
              {"steps", hybrid.steps()},
              {"options", save_options<torch::optim::AdamOptions>(hybrid.param_groups()[0].options())}};
  visit_kind(hybrid.adam(), [&](const auto& kind) {
    values["adam"] = save_kind(kind, hybrid.adam(), names, "/adam", tensors);
  });
  visit_kind(hybrid.lbfgs(), [&](const auto& kind) {
    values["lbfgs"] = save_kind(kind, hybrid.lbfgs(), names, "/lbfgs", tensors);
  });
  return values;
}

Commit prepare_hybrid(optim::AdamLbfgs& hybrid, const Names& names, const Json& values,
                      optim::TensorPool& pool) {
  using torch::optim::AdamOptions;
  check_class("AdamLbfgs", values);
  const auto steps = values.at("steps").get<int64_t>();
  const auto options = read_options<AdamOptions>(hybrid.param_groups()[0].options(), values.at("options"));
  Commit adam;
  Commit lbfgs;
  visit_kind(hybrid.adam(), [&](const auto& kind) {
    adam = prepare_kind(kind, hybrid.adam(), names, values.at("adam"), "/adam", pool);
  });
  visit_kind(hybrid.lbfgs(), [&](const auto& kind) {
    lbfgs = prepare_kind(kind, hybrid.lbfgs(), names, values.at("lbfgs"), "/lbfgs", pool);
  });
  return [&hybrid, steps, options, adam, lbfgs] {
    adam();
    lbfgs();
    static_cast<AdamOptions&>(hybrid.param_groups()[0].options()) = options;
    hybrid.set_steps(steps);
  };
}

at::Tensor save_archive(const Optimizer& optimizer) {
  torch::serialize::OutputArchive archive;
  optimizer.save(archive);
  std::ostringstream stream;
  archive.save_to(stream);
  const std::string bytes = stream.str();
  torch::serialize::InputArchive check;
  check.load_from(bytes.data(), bytes.size());
  if (check.keys().empty()) {
    throw ConfigError("optim",
                      "this class of optimizer saves nothing, so that it could not go on from a "
                      "checkpoint: override save() and load() in " +
                          optimizer_class(optimizer));
  }
  at::Tensor blob = at::empty({static_cast<int64_t>(bytes.size())}, at::kByte);
  std::memcpy(blob.data_ptr(), bytes.data(), bytes.size());
  return blob;
}

Commit prepare_archive(Optimizer& optimizer, const Json& values, optim::TensorPool& pool) {
  check_class(optimizer_class(optimizer), values);
  const auto found = pool.find(kArchiveName);
  if (found == pool.end()) {
    throw ConfigError("optim", "a tensor of the saved optimizer state is missing: /archive");
  }
  const at::Tensor blob = found->second.to(at::kCPU, at::kByte).contiguous();
  pool.erase(found);
  return [&optimizer, blob] {
    try {
      torch::serialize::InputArchive archive;
      archive.load_from(static_cast<const char*>(blob.data_ptr()), static_cast<size_t>(blob.numel()));
      optimizer.load(archive);
    } catch (const c10::Error& error) {
      throw ConfigError("optim", fmt::format("{} cannot read its saved state: {}", optimizer_class(optimizer),
                                             error.what_without_backtrace()));
    }
  };
}

}  // namespace

void optim::load_state_of(Optimizer& optimizer, const at::Tensor& parameter, const std::string& name,
                          const Json& values, const NamedTensors& tensors) {
  TensorPool pool(tensors.begin(), tensors.end());
  const bool is_known = visit_kind(optimizer, [&](const auto& kind) {
    using State = typename std::decay_t<decltype(kind)>::State;
    auto state = std::make_unique<State>();
    FieldReader reader(values, pool, name, parameter, /*allow_scalars=*/false);
    read_saved("the optimizer", [&] { for_each_state(*state, reader); });
    optimizer.state()[parameter.unsafeGetTensorImpl()] = std::move(state);
  });
  base::check(is_known, "the fields of an optimizer's state are not known");
}

std::string optimizer_class(const Optimizer& optimizer) {
  std::string name;
  if (visit_kind(optimizer, [&](const auto& kind) { name = kind.name; })) return name;
  if (typeid(optimizer) == typeid(optim::AdamLbfgs)) return "AdamLbfgs";
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> readable(
      abi::__cxa_demangle(typeid(optimizer).name(), nullptr, nullptr, &status), &std::free);
  return status == 0 ? readable.get() : typeid(optimizer).name();
}

OptimizerState optimizer_state(const Optimizer& optimizer, const NamedTensors& parameters) {
  const Names names(parameters);
  OptimizerState state;
  Json values;
  if (const auto* hybrid = dynamic_cast<const optim::AdamLbfgs*>(&optimizer)) {
    values = save_hybrid(*hybrid, names, state.tensors);
  } else if (!visit_kind(optimizer, [&](const auto& kind) {
               values = save_kind(kind, optimizer, names, "", state.tensors);
             })) {
    values = {{"class", optimizer_class(optimizer)}};
    state.tensors.emplace_back(kArchiveName, save_archive(optimizer));
  }
  state.values = values.dump();
  return state;
}

void load_optimizer_state(Optimizer& optimizer, const NamedTensors& parameters, const OptimizerState& state) {
  const Names names(parameters);
  optim::TensorPool pool(state.tensors.begin(), state.tensors.end());
  Commit commit;
  optim::read_saved("the optimizer", [&] {
    const Json values = Json::parse(state.values);
    if (auto* hybrid = dynamic_cast<optim::AdamLbfgs*>(&optimizer)) {
      commit = prepare_hybrid(*hybrid, names, values, pool);
    } else if (!visit_kind(optimizer, [&](const auto& kind) {
                 commit = prepare_kind(kind, optimizer, names, values, "", pool);
               })) {
      commit = prepare_archive(optimizer, values, pool);
    }
  });
  if (!pool.empty()) {
    throw ConfigError("optim",
                      "the saved optimizer state has a tensor that belongs nowhere: " + pool.begin()->first);
  }
  commit();
}

}  // namespace lockstep
