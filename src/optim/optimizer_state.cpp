#include "optim/optimizer_state.h"

#include <cxxabi.h>
#include <fmt/ranges.h>
#include <lockstep/error.h>
#include <lockstep/optim.h>
#include <torch/torch.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <sstream>
#include <tuple>
#include <type_traits>
#include <unordered_map>

#include "base/check.h"
#include "optim/argument.h"
#include "optim/optimizer_kinds.h"
#include "optim/optimizers.h"

namespace lockstep::optim {
namespace {

// --- one state as JSON and tensors ---

// Numbers and options to JSON and back.
Json to_value(double number) { return exact_number(number); }
Json to_value(bool flag) { return flag; }
Json to_value(int64_t number) { return number; }
Json to_value(const std::tuple<double, double>& pair) { return pair; }
template <typename T>
Json to_value(const std::optional<T>& value) {
  return value;
}

void from_value(const Json& value, double& number) { number = exact_number_of(value); }
void from_value(const Json& value, bool& flag) { value.get_to(flag); }
void from_value(const Json& value, int64_t& number) { value.get_to(number); }
void from_value(const Json& value, std::tuple<double, double>& pair) { value.get_to(pair); }
template <typename T>
void from_value(const Json& value, std::optional<T>& result) {
  result = value.is_null() ? std::nullopt : std::optional<T>(value.get<T>());
}

// Splits the fields of one state: tensors are added to `tensors` under "PREFIX/NAME", all else to the
// JSON object, which also lists the tensors.
class FieldWriter {
 public:
  FieldWriter(NamedTensors& tensors, std::string prefix) : tensors_(tensors), prefix_(std::move(prefix)) {}

  template <typename T>
  void operator()(const char* name, const T& value) {
    values_[name] = to_value(value);
  }
  void operator()(const char* name, const at::Tensor& tensor) {
    if (!tensor.defined()) return;
    values_["tensors"].push_back(name);
    tensors_.emplace_back(fmt::format("{}/{}", prefix_, name), tensor);
  }
  void operator()(const char* name, const std::deque<at::Tensor>& list) {
    values_[name] = list.size();
    for (size_t i = 0; i < list.size(); ++i) {
      tensors_.emplace_back(fmt::format("{}/{}/{}", prefix_, name, i), list[i]);
    }
  }

  const Json& values() const { return values_; }

 private:
  NamedTensors& tensors_;
  std::string prefix_;
  Json values_ = {{"tensors", Json::array()}};
};

// A sharded optimizer keeps float32 state for 16-bit parameters, a replicated one 16-bit state: each
// loads the other's.
bool converts(c10::ScalarType from, c10::ScalarType to) {
  const auto is_16bit = [](c10::ScalarType dtype) { return dtype == at::kHalf || dtype == at::kBFloat16; };
  return from == to || (from == at::kFloat && is_16bit(to)) || (is_16bit(from) && to == at::kFloat);
}

// Saved tensors by name; each is taken once.
using TensorPool = std::map<std::string, at::Tensor>;

// Reads the fields of one state. Tensors become copies on the device and in the dtype of `like`; float32
// and 16 bit are converted to each other. ConfigError: a tensor is missing, or is neither a scalar nor
// of like's shape and dtype.
class FieldReader {
 public:
  FieldReader(const Json& values, TensorPool& pool, std::string prefix, at::Tensor like, bool allow_scalars)
      : values_(values),
        pool_(pool),
        prefix_(std::move(prefix)),
        like_(std::move(like)),
        allow_scalars_(allow_scalars) {}

  template <typename T>
  void operator()(const char* name, T& value) {
    from_value(values_.at(name), value);
  }
  void operator()(const char* name, at::Tensor& tensor) {
    const auto& saved = values_.at("tensors");
    if (std::find(saved.begin(), saved.end(), name) != saved.end()) tensor = take(name);
  }
  void operator()(const char* name, std::deque<at::Tensor>& list) {
    const auto size = values_.at(name).get<size_t>();
    list.clear();
    for (size_t i = 0; i < size; ++i) list.push_back(take(fmt::format("{}/{}", name, i)));
  }

 private:
  at::Tensor take(const std::string& name);

  const Json& values_;
  TensorPool& pool_;
  std::string prefix_;
  at::Tensor like_;
  bool allow_scalars_;
};

at::Tensor FieldReader::take(const std::string& name) {
  const auto found = pool_.find(fmt::format("{}/{}", prefix_, name));
  if (found == pool_.end()) {
    throw ConfigError("optim",
                      fmt::format("a tensor of the saved optimizer state is missing: {}/{}", prefix_, name));
  }
  const at::Tensor tensor = found->second;
  const bool scalar = allow_scalars_ && tensor.dim() == 0;
  const bool fits = tensor.sizes() == like_.sizes() && converts(tensor.scalar_type(), like_.scalar_type());
  if (!scalar && !fits) {
    throw ConfigError(
        "optim",
        fmt::format(
            "the saved optimizer state does not fit the model: {} of {} is {} [{}] there and {} [{}] here",
            name, prefix_.empty() ? "all parameters" : prefix_, c10::toString(tensor.scalar_type()),
            fmt::join(tensor.sizes(), ", "), c10::toString(like_.scalar_type()),
            fmt::join(like_.sizes(), ", ")));
  }
  pool_.erase(found);
  if (scalar) return tensor.detach().to(like_.device(), tensor.scalar_type(), false, /*copy=*/true);
  // With the parameter's strides: fused kernels take no mixture of layouts.
  const at::NoGradGuard no_grad;
  return at::empty_like(like_).copy_(tensor).detach();
}

// --- one state in an archive of torch::save ---

struct ArchiveWriter {
  torch::serialize::OutputArchive& archive;

  template <typename T>
  void operator()(const char* name, const T& value) const {
    if constexpr (std::is_same_v<T, at::Tensor>) {
      if (!value.defined()) return;
    }
    archive.write(name, c10::IValue(value));
  }
};

struct ArchiveReader {
  torch::serialize::InputArchive& archive;

  template <typename T>
  void operator()(const char* name, T& value) const {
    c10::IValue saved;
    const bool exists = archive.try_read(name, saved);
    TORCH_CHECK(exists || (std::is_same_v<T, at::Tensor>), "the archive has no '", name, "'");
    if (exists) value = saved.to<T>();
  }
};

}  // namespace

// As torch::optim writes its own classes: an undefined tensor has no key.
template <typename Own>
void GroupOptions<Own>::serialize(torch::serialize::OutputArchive& archive) const {
  for_each_option(static_cast<const Own&>(*this), ArchiveWriter{archive});
}

template <typename Own>
void GroupOptions<Own>::serialize(torch::serialize::InputArchive& archive) {
  for_each_option(static_cast<Own&>(*this), ArchiveReader{archive});
}

template <typename Own>
void ParamState<Own>::serialize(torch::serialize::OutputArchive& archive) const {
  for_each_state(static_cast<const Own&>(*this), ArchiveWriter{archive});
}

template <typename Own>
void ParamState<Own>::serialize(torch::serialize::InputArchive& archive) {
  for_each_state(static_cast<Own&>(*this), ArchiveReader{archive});
}

template struct GroupOptions<AdadeltaGroupOptions>;
template struct GroupOptions<LambGroupOptions>;
template struct GroupOptions<LionGroupOptions>;
template struct ParamState<AdadeltaParamState>;
template struct ParamState<LambParamState>;
template struct ParamState<LionParamState>;

std::vector<at::Tensor> state_tensors(const torch::optim::Optimizer& optimizer, const at::Tensor& parameter) {
  std::vector<at::Tensor> tensors;
  const auto found = optimizer.state().find(parameter.unsafeGetTensorImpl());
  if (found == optimizer.state().end()) return tensors;
  visit_kind(optimizer, [&](const auto& kind) {
    using State = typename std::decay_t<decltype(kind)>::State;
    if constexpr (!std::is_same_v<State, torch::optim::LBFGSParamState>) {
      for_each_state(static_cast<const State&>(*found->second), [&](const char*, const auto& value) {
        if constexpr (std::is_same_v<std::decay_t<decltype(value)>, at::Tensor>) {
          if (value.defined()) tensors.push_back(value);
        }
      });
    }
  });
  return tensors;
}

int max_state_tensors(const torch::optim::Optimizer& optimizer,
                      const torch::optim::OptimizerOptions& options) {
  using namespace torch::optim;  // NOLINT(google-build-using-namespace): names of one function
  int count = -1;
  visit_kind(optimizer, [&](const auto& kind) {
    using Options = typename std::decay_t<decltype(kind)>::Options;
    const auto& own = static_cast<const Options&>(options);
    if constexpr (kIsOneOf<Options, AdamOptions, AdamWOptions>) {
      count = own.amsgrad() ? 3 : 2;
    } else if constexpr (kIsOneOf<Options, RMSpropOptions>) {
      count = 1 + (own.momentum() > 0 ? 1 : 0) + (own.centered() ? 1 : 0);
    } else if constexpr (kIsOneOf<Options, SGDOptions>) {
      count = own.momentum() != 0 ? 1 : 0;
    } else if constexpr (kIsOneOf<Options, AdadeltaGroupOptions>) {
      count = 2;
    } else if constexpr (kIsOneOf<Options, AdagradOptions, LionGroupOptions>) {
      count = 1;
    }
  });
  return count;
}

}  // namespace lockstep::optim

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

// One state: its name, and the parameter that it belongs to.
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

// `part` goes between the name of a parameter and that of a field: "/adam" for an optimizer inside
// another.
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
    if (found == optimizer.state().end()) continue;  // no gradient so far
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

// Applies what was read and checked; it cannot fail.
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
                      "this class of optimizer saves nothing, so that a checkpoint could not be resumed: "
                      "override save() and load() in " +
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

bool optim::supports_complex(const Optimizer& optimizer) {
  const std::type_info& type = typeid(optimizer);
  if (type == typeid(torch::optim::SGD) || type == typeid(PythonAdam) || type == typeid(Adadelta))
    return true;
  return type != typeid(AdamLbfgs) && !visit_kind(optimizer, [](const auto& /*kind*/) {});
}

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
