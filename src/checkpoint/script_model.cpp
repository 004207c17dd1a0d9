#include <fmt/format.h>
#include <lockstep/error.h>
#include <lockstep/script_model.h>
#include <torch/csrc/jit/serialization/export.h>
#include <torch/script.h>
#include <torch/torch.h>

#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "checkpoint/torch_archive.h"

namespace lockstep {
namespace {

using JitModule = torch::jit::Module;

// A buffer of the script, and the slot in which the script stores it.
struct BufferSlot {
  c10::intrusive_ptr<c10::ivalue::Object> owner;
  size_t slot;
  at::Tensor tensor;
};

// Filled by register_all, for all submodules.
struct Registration {
  std::unordered_set<c10::TensorImpl*> seen;
  std::vector<BufferSlot> buffers;
};

class Submodule : public torch::nn::Module {
 public:
  explicit Submodule(std::string name) : torch::nn::Module(std::move(name)) {}
};

// Registers the parameters and buffers of `script` in `module`. They are the same tensors: a change on
// one side is visible on the other.
void register_all(torch::nn::Module& module, const JitModule& script, Registration& registration) {
  for (const auto& entry : script.named_parameters(/*recurse=*/false)) {
    if (!registration.seen.insert(entry.value.unsafeGetTensorImpl()).second) continue;
    module.register_parameter(entry.name, entry.value, entry.value.requires_grad());
  }
  for (const auto& entry : script.named_buffers(/*recurse=*/false)) {
    if (!registration.seen.insert(entry.value.unsafeGetTensorImpl()).second) continue;
    module.register_buffer(entry.name, entry.value);
    registration.buffers.push_back(
        {script._ivalue(), script.type()->getAttributeSlot(entry.name), entry.value});
  }
  for (const auto& child : script.named_children()) {
    const auto submodule = std::make_shared<Submodule>(child.name);
    register_all(*submodule, child.value, registration);
    module.register_module(child.name, submodule);
  }
}

// A script may assign a new tensor to a buffer (self.count = self.count + 1). The registered tensor,
// which optimizers and other code refer to, must stay: it gets the new value.
void put_back(const BufferSlot& buffer) {
  const c10::IValue& current = buffer.owner->getSlot(buffer.slot);
  if (!current.isTensor() || current.toTensor().is_same(buffer.tensor)) return;
  const at::Tensor value = current.toTensor().detach();
  at::Tensor registered = buffer.tensor;
  if (value.sizes() == registered.sizes() && value.scalar_type() == registered.scalar_type()) {
    const torch::NoGradGuard guard;
    registered.copy_(value);
  } else {
    registered.set_data(value);
  }
  buffer.owner->setSlot(buffer.slot, registered);
}

JitModule load_script(const std::filesystem::path& file) {
  if (!std::filesystem::is_regular_file(file)) {
    throw ConfigError("interop", fmt::format("there is no TorchScript file '{}'", file.string()));
  }
  try {
    JitModule module = torch::jit::load(file.string(), at::kCPU);
    if (!module.find_method("forward")) {
      throw ConfigError("interop",
                        fmt::format("the TorchScript module of '{}' has no method forward", file.string()));
    }
    return module;
  } catch (const std::exception& error) {
    if (dynamic_cast<const Error*>(&error) != nullptr) throw;
    const auto* torch_error = dynamic_cast<const c10::Error*>(&error);
    throw ConfigError(
        "interop",
        fmt::format(
            "'{}' holds no TorchScript module, in Python torch.jit.script(model).save(path) makes one: {}",
            file.string(), torch_error != nullptr ? torch_error->what_without_backtrace() : error.what()));
  }
}

}  // namespace

struct ScriptModelImpl::Script {
  JitModule module;
  std::vector<BufferSlot> buffers;
};

ScriptModelImpl::ScriptModelImpl(const std::filesystem::path& file)
    : ScriptModelImpl(std::make_shared<Script>(Script{load_script(file), {}})) {}

ScriptModelImpl::ScriptModelImpl(std::shared_ptr<Script> script)
    : torch::nn::Module("ScriptModel"), script_(std::move(script)) {
  Registration registration;
  register_all(*this, script_->module, registration);
  script_->buffers = std::move(registration.buffers);
  if (script_->module.hasattr("training")) torch::nn::Module::train(script_->module.is_training());
}

at::Tensor ScriptModelImpl::forward(const at::Tensor& input) {
  const c10::IValue output = script_->module.forward({input});
  for (const BufferSlot& buffer : script_->buffers) put_back(buffer);
  if (!output.isTensor()) {
    throw ConfigError("interop",
                      fmt::format("forward of a TorchScript model must return one tensor, it returns: {}",
                                  output.type()->repr_str()));
  }
  return output.toTensor();
}

void ScriptModelImpl::train(bool on) {
  torch::nn::Module::train(on);
  script_->module.train(on);
}

std::shared_ptr<torch::nn::Module> ScriptModelImpl::clone(const std::optional<torch::Device>& device) const {
  auto copy = std::make_shared<Script>(Script{script_->module.deepcopy(), {}});
  std::shared_ptr<ScriptModelImpl> module(new ScriptModelImpl(std::move(copy)));
  if (device) module->to(*device);
  return module;
}

void ScriptModelImpl::pretty_print(std::ostream& stream) const {
  stream << "lockstep::ScriptModel(" << script_->module.type()->repr_str() << ")";
}

void ScriptModelImpl::save_script(const std::filesystem::path& file) const {
  JitModule module = script_->module;
  const auto tensors = parameters();
  if (!tensors.empty() && !tensors.front().is_cpu()) module = module.deepcopy(at::kCPU);
  checkpoint::publish_archive(
      file, [&](const checkpoint::ArchiveOutput& output) { torch::jit::ExportModule(module, output); });
}

}  // namespace lockstep
