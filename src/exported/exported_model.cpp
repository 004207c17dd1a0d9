#include <ATen/MemoryOverlap.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <lockstep/error.h>
#include <lockstep/exported_model.h>
#include <torch/torch.h>

#include <algorithm>
#include <ostream>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "base/log.h"
#include "checkpoint/weights.h"
#include "exported/archive.h"
#include "exported/executable.h"
#include "exported/exported_model_impl.h"
#include "exported/operators.h"
#include "exported/segments.h"

namespace lockstep {
namespace {

class ExportedSubmodule : public torch::nn::Module {
 public:
  explicit ExportedSubmodule(std::string name) : torch::nn::Module(std::move(name)) {}
};

// Names may be deeper, modules without tensors are then left out.
constexpr int64_t kMaxModuleLevels = 64;

// The module that owns `path`, made on the way: that of "layer1.0" for "layer1.0.weight". `name` becomes
// the last part.
torch::nn::Module& owner_of(torch::nn::Module& root, const std::string& path, std::string& name) {
  torch::nn::Module* module = &root;
  size_t begin = 0;
  for (size_t dot = path.find('.'); dot != std::string::npos; dot = path.find('.', begin)) {
    const std::string child = path.substr(begin, dot - begin);
    auto children = module->named_children();
    if (const auto* const found = children.find(child)) {
      module = found->get();
    } else {
      module = module->register_module(child, std::make_shared<ExportedSubmodule>("Module")).get();
    }
    begin = dot + 1;
  }
  name = path.substr(begin);
  return *module;
}

// Sorts the tensors of a state dict as Python does: by module, parameters before buffers. In the file they
// are in another order.
void sort_as_python(const exported::Program& program, std::vector<exported::Payload>& payloads) {
  std::unordered_map<std::string, size_t> module_order;
  for (const std::string& module : program.modules) module_order.emplace(module, module_order.size());
  std::unordered_map<std::string, size_t> input_order;
  for (const exported::Input& input : program.inputs) input_order.emplace(input.name, input_order.size());
  const auto place_in = [](const std::unordered_map<std::string, size_t>& order, const std::string& name) {
    const auto found = order.find(name);
    return found == order.end() ? SIZE_MAX : found->second;
  };
  const auto key = [&](const exported::Payload& payload) {
    const size_t dot = payload.name.rfind('.');
    return std::tuple(place_in(module_order, dot == std::string::npos ? "" : payload.name.substr(0, dot)),
                      !payload.is_parameter, place_in(input_order, payload.name));
  };
  std::stable_sort(payloads.begin(), payloads.end(),
                   [&](const exported::Payload& a, const exported::Payload& b) { return key(a) < key(b); });
}

using TensorsByName = std::unordered_map<std::string, at::Tensor>;

TensorsByName by_name(const std::vector<exported::Payload>& payloads) {
  TensorsByName tensors;
  for (const exported::Payload& payload : payloads) tensors.emplace(payload.name, payload.tensor);
  return tensors;
}

const at::Tensor& tensor_named(const std::string& file, const TensorsByName& tensors,
                               const std::string& name) {
  const auto found = tensors.find(name);
  if (found != tensors.end()) return found->second;
  throw ConfigError("exported", fmt::format("cannot load '{}': it has no tensor '{}'", file, name));
}

// ConfigError: the tensor has another dtype or shape than the program has for its name.
void require_as_described(const std::string& file, const exported::Input& input, const at::Tensor& tensor) {
  const exported::TensorMeta& meta = *input.tensor;
  bool same = meta.sizes.size() == static_cast<size_t>(tensor.dim());
  for (size_t i = 0; same && i < meta.sizes.size(); ++i) {
    same = meta.sizes[i].fixed == tensor.size(static_cast<int64_t>(i));
  }
  if (!same) {
    throw ConfigError("exported", fmt::format("cannot load '{}': its tensor '{}' has the shape [{}], and its "
                                              "program has another one",
                                              file, input.name, fmt::join(tensor.sizes(), ", ")));
  }
  if (meta.dtype != tensor.scalar_type()) {
    throw ConfigError(
        "exported",
        fmt::format("cannot load '{}': its tensor '{}' has dtype {}, and its program has {}", file,
                    input.name, c10::toString(tensor.scalar_type()), c10::toString(meta.dtype)));
  }
}

// Copies the values of a tensor to memory of other strides. Elements that share memory are copied once.
void copy_values(at::Tensor from, at::Tensor to) {
  const torch::NoGradGuard no_grad;
  for (int64_t i = 0; i < to.dim(); ++i) {
    if (to.stride(i) != 0 || to.size(i) < 2) continue;
    to = to.narrow(i, 0, 1);
    from = from.narrow(i, 0, 1);
  }
  to.copy_(from);
}

}  // namespace

void ExportedModelImpl::Impl::make_executable(const std::string& shard, const std::string& recompute) {
  const std::vector<std::string> again = exported::modules_matching(*program, recompute);
  if (again.empty() && !recompute.empty()) {
    throw exported::ProgramError(
        "no class of its modules occurs several times: choose modules by their paths");
  }
  auto made = std::make_shared<exported::Executable>(
      *program,
      exported::Cuts{.shard = exported::calls_of(*program, exported::modules_matching(*program, shard)),
                     .recompute = exported::calls_of(*program, again)});
  for (const exported::Executable::Segment& segment : made->segments()) {
    if (!segment.recomputes || segment.refusal.empty()) continue;
    throw exported::ProgramError(fmt::format("its module '{}' cannot compute its activations again: {}",
                                             segment.path, segment.refusal));
  }
  executable = std::move(made);
  sharded = shard;
  recomputed = recompute;
}

void ExportedModelImpl::Impl::bind_tensors() {
  const TensorsByName tensors = by_name(registered);
  for (const exported::Input& input : program->inputs) {
    const auto found = tensors.find(input.name);
    const bool is_registered =
        input.kind == exported::Input::Kind::kParameter || input.kind == exported::Input::Kind::kBuffer;
    if (is_registered && found != tensors.end()) executable->bind(input.value, found->second);
  }
  for (const Unregistered& each : unregistered) executable->bind(each.value, each.tensor);
}

// Does to the tensors that are not registered what to(device, dtype) did to the module.
void ExportedModelImpl::Impl::follow_parameters() {
  if (!leader.defined()) return;
  const bool converted = leader.is_floating_point() && leader.scalar_type() != loaded_dtype;
  for (Unregistered& each : unregistered) {
    const bool converts = converted && each.is_buffer && each.tensor.is_floating_point();
    const at::ScalarType dtype = converts ? leader.scalar_type() : each.tensor.scalar_type();
    if (each.tensor.device() == leader.device() && each.tensor.scalar_type() == dtype) continue;
    each.tensor = each.tensor.to(leader.device(), dtype);
    executable->bind(each.value, each.tensor);
  }
}

void ExportedModelImpl::Impl::give_back(Values values) {
  values.inputs.clear();
  values.outputs.clear();
  spare_values = std::move(values);
}

void ExportedModelImpl::Impl::run(const std::vector<c10::IValue>& inputs, bool training,
                                  std::vector<c10::IValue>& outputs) {
  rules.check(inputs);
  follow_parameters();
  c10::Device device = at::kCPU;
  if (leader.defined()) {
    device = leader.device();
  } else if (!inputs.empty() && inputs[0].isTensor()) {
    device = inputs[0].toTensor().device();
  }
  executable->run(inputs, training, device, outputs);
}

ExportedModelImpl::ExportedModelImpl(const std::filesystem::path& file) : torch::nn::Module("ExportedModel") {
  exported::Archive archive = exported::read_archive(file);
  try {
    impl_ = std::make_unique<Impl>(file.string(),
                                   std::make_shared<const exported::Program>(std::move(archive.program)));
  } catch (const exported::ProgramError& error) {
    throw ConfigError("exported", fmt::format("cannot load '{}': {}", file.string(), error.what()));
  }
  impl_->registered = std::move(archive.weights);
  const auto weights = by_name(impl_->registered);
  const auto constants = by_name(archive.constants);
  for (const exported::Input& input : impl_->program->inputs) {
    if (input.kind == exported::Input::Kind::kUser) continue;
    const bool is_buffer = input.kind == exported::Input::Kind::kBuffer;
    const bool in_state = input.kind == exported::Input::Kind::kParameter || (is_buffer && input.persistent);
    const at::Tensor& tensor = tensor_named(impl_->file, in_state ? weights : constants, input.name);
    require_as_described(impl_->file, input, tensor);
    if (in_state) continue;
    if (is_buffer && at::has_internal_overlap(tensor) != at::MemOverlap::Yes) {
      impl_->registered.push_back({input.name, tensor, /*is_parameter=*/false, "", /*persistent=*/false});
    } else {
      impl_->unregistered.push_back({input.name, input.value, tensor.detach(), is_buffer});
    }
  }
  sort_as_python(*impl_->program, impl_->registered);
  register_tensors();
  if (impl_->leader.defined()) impl_->loaded_dtype = impl_->leader.scalar_type();
  if (impl_->executable->exported_for_evaluation()) {
    base::log_warning("exported",
                      "'{}' was exported in evaluation mode: batch norm and dropout are off in training too; "
                      "call model.train() before torch.export.export",
                      impl_->file);
  }
  if (!impl_->executable->always_random().empty()) {
    base::log_warning("exported", "'{}' draws random numbers in evaluation too: {}", impl_->file,
                      impl_->executable->always_random());
  }
  for (const std::string& place : impl_->executable->without_gradient()) {
    if (place.starts_with("torch.ops.aten.")) {
      base::log_warning(
          "exported",
          "'{}' cannot be trained through the operator {}: this LibTorch has no autograd formula "
          "for it; call another in Python, or export without run_decompositions()",
          impl_->file, place);
      continue;
    }
    base::log_warning(
        "exported",
        "'{}' trains nothing through the operator {}: it has no autograd formula; register one with "
        "TORCH_LIBRARY_IMPL(..., Autograd, ...)",
        impl_->file, place);
  }
}

void ExportedModel::load_operators(const std::filesystem::path& library) {
  exported::load_operator_library(library);
}

ExportedModelImpl::ExportedModelImpl(std::unique_ptr<Impl> impl)
    : torch::nn::Module("ExportedModel"), impl_(std::move(impl)) {
  register_tensors();
}

ExportedModelImpl::~ExportedModelImpl() = default;

// Registers `registered` and gives all tensors to the program.
void ExportedModelImpl::register_tensors() {
  register_modules();
  std::unordered_map<c10::TensorImpl*, bool> seen;
  bool leader_is_parameter = false;
  for (const exported::Payload& payload : impl_->registered) {
    at::Tensor tensor = payload.tensor;
    if (!seen.emplace(tensor.unsafeGetTensorImpl(), true).second) continue;
    std::string name;
    try {
      torch::nn::Module& owner = owner_of(*this, payload.name, name);
      if (payload.is_parameter) {
        owner.register_parameter(name, tensor, tensor.requires_grad());
      } else {
        owner.register_buffer(name, tensor);
      }
    } catch (const c10::Error& error) {
      throw ConfigError("exported", fmt::format("cannot load '{}': its tensor '{}' cannot have this name: {}",
                                                impl_->file, payload.name, error.what_without_backtrace()));
    }
    // Of a model with complex parameters alone, or without parameters, another tensor tells the device.
    at::Tensor& leader = impl_->leader;
    const bool leads = payload.is_parameter && tensor.is_floating_point();
    if (!leader.defined() || (leads && !(leader_is_parameter && leader.is_floating_point()))) {
      leader = tensor;
      leader_is_parameter = payload.is_parameter;
    }
  }
  impl_->bind_tensors();
}

// Python's modules, also those without tensors, by the names of their classes.
void ExportedModelImpl::register_modules() {
  std::unordered_map<std::string, std::string> classes;
  for (const exported::ModuleCall& call : impl_->program->calls)
    classes.emplace(call.path, call.module_class);
  for (const std::string& path : impl_->program->modules) {
    if (path.empty() || std::count(path.begin(), path.end(), '.') >= kMaxModuleLevels) continue;
    const auto known = classes.find(path);
    const std::string kind = known == classes.end() ? "Module" : known->second;
    std::string name;
    try {
      owner_of(*this, path, name)
          .register_module(name, std::make_shared<ExportedSubmodule>(kind.substr(kind.rfind('.') + 1)));
    } catch (const c10::Error&) {
      // A name that LibTorch does not take has no tensors either, or they are refused.
    }
  }
}

void ExportedModelImpl::cut(const std::string& shard, const std::string& recompute) {
  for (const exported::Executable::Segment& segment : impl_->executable->segments()) {
    if (segment.unit == nullptr || !segment.unit->attached()) continue;
    throw ConfigError("exported", "shard_by() and recompute_by() were called after a trainer has the model");
  }
  try {
    impl_->make_executable(shard, recompute);
  } catch (const exported::ProgramError& error) {
    throw ConfigError("exported", fmt::format("cannot cut '{}' by '{}' into modules: {}", impl_->file,
                                              shard == impl_->sharded ? recompute : shard, error.what()));
  }
  impl_->bind_tensors();
}

void ExportedModelImpl::shard_by(const std::string& pattern) { cut(pattern, impl_->recomputed); }
void ExportedModelImpl::recompute_by(const std::string& pattern) { cut(impl_->sharded, pattern); }

std::vector<parallel::UnitSource::Owned> ExportedModelImpl::units() {
  constexpr size_t kModel = SIZE_MAX;
  const exported::Executable& executable = *impl_->executable;
  // A tied parameter has several values. It belongs to the model unless one segment uses them all.
  std::unordered_map<c10::TensorImpl*, size_t> owners;
  std::unordered_map<std::string, exported::ValueId> values;
  for (const exported::Input& input : impl_->program->inputs) {
    if (input.kind == exported::Input::Kind::kParameter) values.emplace(input.name, input.value);
  }
  for (const exported::Payload& payload : impl_->registered) {
    const auto value = values.find(payload.name);
    if (value == values.end() || !executable.is_used(value->second)) continue;
    const size_t owner = executable.owner_of(value->second).value_or(kModel);
    const auto [found, is_new] = owners.try_emplace(payload.tensor.unsafeGetTensorImpl(), owner);
    if (!is_new && found->second != owner) found->second = kModel;
  }
  std::vector<Owned> found;
  std::unordered_map<size_t, size_t> places;
  for (size_t i = 0; i < executable.segments().size(); ++i) {
    if (executable.segments()[i].unit == nullptr) continue;
    places[i] = found.size();
    found.push_back({executable.segments()[i].unit.get(), {}});
  }
  for (const exported::Payload& payload : impl_->registered) {
    const auto owner = owners.find(payload.tensor.unsafeGetTensorImpl());
    if (owner == owners.end() || owner->second == kModel) continue;
    found[places.at(owner->second)].parameters.push_back(payload.tensor);
    owners.erase(owner);
  }
  std::erase_if(found, [](const Owned& owned) { return owned.parameters.empty(); });
  return found;
}

const std::vector<std::string>& ExportedModelImpl::input_names() const { return impl_->input_names; }
const std::vector<std::string>& ExportedModelImpl::output_names() const { return impl_->output_names; }

std::vector<std::optional<c10::ScalarType>> ExportedModelImpl::input_dtypes() const {
  std::vector<std::optional<c10::ScalarType>> dtypes;
  for (const exported::Input& input : impl_->program->inputs) {
    if (input.kind != exported::Input::Kind::kUser || input.only_value) continue;
    dtypes.push_back(input.tensor ? std::optional(input.tensor->dtype) : std::nullopt);
  }
  return dtypes;
}

std::vector<c10::IValue> ExportedModelImpl::run(const std::vector<c10::IValue>& inputs) {
  std::vector<c10::IValue> outputs;
  impl_->run(inputs, is_training(), outputs);
  return outputs;
}

std::vector<c10::IValue> ExportedModelImpl::example_inputs(std::optional<int64_t> batch) const {
  const at::Tensor& leader = impl_->leader;
  const bool converted =
      leader.defined() && leader.is_floating_point() && leader.scalar_type() != impl_->loaded_dtype;
  return impl_->rules.example(batch, converted ? std::optional(leader.scalar_type()) : std::nullopt);
}

std::map<std::string, c10::IValue> ExportedModelImpl::run(const std::map<std::string, c10::IValue>& inputs) {
  std::vector<c10::IValue> ordered;
  for (const std::string& name : input_names()) {
    const auto found = inputs.find(name);
    if (found == inputs.end()) {
      throw ConfigError("exported", fmt::format("the model needs the input '{}', one of {}", name,
                                                fmt::join(input_names(), ", ")));
    }
    ordered.push_back(found->second);
  }
  if (inputs.size() != ordered.size()) {
    for (const auto& [name, value] : inputs) {
      const auto& names = input_names();
      if (std::find(names.begin(), names.end(), name) != names.end()) continue;
      if (impl_->rules.is_fixed(name, value)) continue;
      throw ConfigError("exported",
                        fmt::format("the model has no input '{}'; it has {}", name, fmt::join(names, ", ")));
    }
  }
  const std::vector<c10::IValue> outputs = run(ordered);
  std::map<std::string, c10::IValue> named;
  for (size_t i = 0; i < outputs.size(); ++i) named.emplace(output_names()[i], outputs[i]);
  return named;
}

at::Tensor ExportedModelImpl::forward(const at::Tensor& input) {
  if (input_names().size() != 1 || output_names().size() != 1) {
    throw ConfigError(
        "exported",
        fmt::format("forward() of an exported model takes one tensor and returns one; this model has "
                    "{} inputs ({}) and {} outputs ({}): call run()",
                    input_names().size(), fmt::join(input_names(), ", "), output_names().size(),
                    fmt::join(output_names(), ", ")));
  }
  Impl::Values values = impl_->take_values();
  values.inputs.emplace_back(input);
  impl_->run(values.inputs, is_training(), values.outputs);
  if (!values.outputs[0].isTensor())
    throw ConfigError("exported", "the output of the model is no tensor: call run()");
  at::Tensor output = std::move(values.outputs[0]).toTensor();
  impl_->give_back(std::move(values));
  return output;
}

void ExportedModelImpl::save_state_dict(const std::filesystem::path& file) const {
  NamedTensors tensors;
  for (const exported::Payload& payload : impl_->registered) {
    if (payload.persistent) tensors.emplace_back(payload.name, payload.tensor.detach());
  }
  checkpoint::write_weights(file, tensors);
}

void ExportedModelImpl::save_program(const std::filesystem::path& file) const {
  const auto fail = [&](const std::string& reason) {
    throw ConfigError("exported", fmt::format("cannot save '{}': {}", file.string(), reason));
  };
  exported::Archive source = exported::read_archive(impl_->file);
  TensorsByName present = by_name(impl_->registered);
  for (const Impl::Unregistered& each : impl_->unregistered) present.emplace(each.name, each.tensor);
  std::unordered_map<std::string, at::Tensor> records;
  for (const auto* payloads : {&source.weights, &source.constants}) {
    for (const exported::Payload& payload : *payloads) {
      const auto found = present.find(payload.name);
      // A constant that the program does not use stays as it is.
      if (found == present.end() && payloads == &source.constants) continue;
      if (found == present.end() || found->second.sizes() != payload.tensor.sizes()) {
        fail(fmt::format("'{}' is not the file any more that the model was loaded from", impl_->file));
      }
      if (found->second.scalar_type() != payload.tensor.scalar_type()) {
        fail(fmt::format(
            "its tensor '{}' has dtype {}, and the program is for {}: convert the model back, or save a "
            "state dict",
            payload.name, c10::toString(found->second.scalar_type()),
            c10::toString(payload.tensor.scalar_type())));
      }
      copy_values(found->second, payload.tensor);
      records.emplace(payload.record, payload.tensor);
    }
  }
  const auto persistent = std::count_if(impl_->registered.begin(), impl_->registered.end(),
                                        [](const exported::Payload& payload) { return payload.persistent; });
  if (source.weights.size() != static_cast<size_t>(persistent)) {
    fail(fmt::format("'{}' is not the file any more that the model was loaded from", impl_->file));
  }
  exported::copy_archive(impl_->file, file,
                         [&](const std::string& record) -> std::optional<std::string_view> {
                           const auto found = records.find(record);
                           if (found == records.end()) return std::nullopt;
                           const c10::Storage& memory = found->second.storage();
                           return std::string_view(static_cast<const char*>(memory.data()), memory.nbytes());
                         });
}

std::vector<std::string> ExportedModelImpl::non_persistent_buffers() const {
  std::vector<std::string> names;
  for (const exported::Payload& payload : impl_->registered) {
    if (!payload.persistent) names.push_back(payload.name);
  }
  return names;
}

std::map<std::string, int64_t> ExportedModelImpl::operators() const {
  std::map<std::string, int64_t> counts;
  for (const exported::OperatorUse& use : exported::operators_of(*impl_->program))
    counts[use.target] = use.count;
  return counts;
}

std::shared_ptr<torch::nn::Module> ExportedModelImpl::clone(
    const std::optional<torch::Device>& device) const {
  const torch::NoGradGuard no_grad;
  auto copy = std::make_unique<Impl>(impl_->file, impl_->program);
  copy->make_executable(impl_->sharded, impl_->recomputed);
  std::unordered_map<c10::TensorImpl*, at::Tensor> copies;  // tied weights stay tied
  for (const exported::Payload& payload : impl_->registered) {
    at::Tensor& tensor = copies[payload.tensor.unsafeGetTensorImpl()];
    if (!tensor.defined()) {
      tensor = device ? payload.tensor.to(*device, payload.tensor.scalar_type(), /*non_blocking=*/false,
                                          /*copy=*/true)
                      : payload.tensor.clone();
      if (payload.is_parameter) tensor.set_requires_grad(payload.tensor.requires_grad());
    }
    copy->registered.push_back(
        {payload.name, tensor, payload.is_parameter, payload.record, payload.persistent});
  }
  for (const Impl::Unregistered& each : impl_->unregistered) {
    copy->unregistered.push_back({each.name, each.value, each.tensor.clone(), each.is_buffer});
  }
  copy->loaded_dtype = impl_->loaded_dtype;
  std::shared_ptr<ExportedModelImpl> module(new ExportedModelImpl(std::move(copy)));
  module->train(is_training());
  return module;
}

void ExportedModelImpl::pretty_print(std::ostream& stream) const {
  stream << "lockstep::ExportedModel(" << impl_->file << ")";
}

}  // namespace lockstep
