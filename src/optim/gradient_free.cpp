#include <fmt/format.h>
#include <fmt/ranges.h>
#include <lockstep/communicator.h>
#include <lockstep/error.h>
#include <lockstep/search.h>
#include <lockstep/weights.h>
#include <torch/torch.h>

#include <limits>
#include <map>

#include "optim/argument.h"

namespace lockstep {

// --- parameters as one vector ---

namespace {

std::vector<at::Tensor> trainable(const torch::nn::Module& module) {
  std::vector<at::Tensor> parameters;
  for (auto& [name, parameter] : named_parameters(module)) {
    if (parameter.requires_grad()) parameters.push_back(parameter);
  }
  return parameters;
}

}  // namespace

int64_t num_parameters(const torch::nn::Module& module) {
  int64_t count = 0;
  for (const at::Tensor& parameter : trainable(module)) count += parameter.numel();
  return count;
}

at::Tensor get_parameters(const torch::nn::Module& module) {
  const torch::NoGradGuard no_grad;
  at::Tensor vector = at::empty({num_parameters(module)}, at::kDouble);
  int64_t offset = 0;
  for (const at::Tensor& parameter : trainable(module)) {
    vector.narrow(0, offset, parameter.numel()).view(parameter.sizes()).copy_(parameter);
    offset += parameter.numel();
  }
  return vector;
}

void set_parameters(torch::nn::Module& module, const at::Tensor& vector) {
  const int64_t expected = num_parameters(module);
  if (vector.dim() != 1 || vector.numel() != expected) {
    throw ConfigError("optim",
                      fmt::format("the vector does not fit the module's {} trainable parameters: shape [{}]",
                                  expected, fmt::join(vector.sizes(), ", ")));
  }
  const torch::NoGradGuard no_grad;
  int64_t offset = 0;
  for (at::Tensor& parameter : trainable(module)) {
    parameter.copy_(vector.narrow(0, offset, parameter.numel()).view(parameter.sizes()));
    offset += parameter.numel();
  }
}

// --- the base of all searches ---

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

std::string shape(const at::Tensor& tensor) { return fmt::format("[{}]", fmt::join(tensor.sizes(), ", ")); }

// One-dimensional float64 tensors to bytes and back.
std::string bytes_of(const at::Tensor& tensor) {
  return std::string(reinterpret_cast<const char*>(tensor.const_data_ptr<double>()), tensor.nbytes());
}
at::Tensor tensor_of(const std::string& bytes) {
  at::Tensor tensor = at::empty({static_cast<int64_t>(bytes.size() / sizeof(double))}, at::kDouble);
  std::copy(bytes.begin(), bytes.end(), reinterpret_cast<char*>(tensor.data_ptr<double>()));
  return tensor;
}

at::Tensor checked_start(const at::Tensor& start) {
  if (start.dim() != 1 || start.numel() < 1 || !at::isfinite(start).all().item<bool>()) {
    throw ConfigError("optim", "a search starts from a vector of finite numbers: shape " + shape(start));
  }
  return start.detach().to(at::kCPU, at::kDouble, /*non_blocking=*/false, /*copy=*/true).contiguous();
}

}  // namespace

GradientFreeOptimizer::GradientFreeOptimizer(const at::Tensor& start)
    : best_(checked_start(start)), counts_(torch::tensor({kInfinity, 0.0}, at::kDouble)) {}

int64_t GradientFreeOptimizer::dimension() const { return best_.numel(); }
double GradientFreeOptimizer::best_loss() const { return counts_[0].item<double>(); }
int64_t GradientFreeOptimizer::evaluations() const { return counts_[1].item<int64_t>(); }

at::Tensor GradientFreeOptimizer::ask(int64_t n) {
  if (n < 1) throw ConfigError("optim", fmt::format("at least one candidate must be asked for: {}", n));
  if (asked_ != 0)
    throw ConfigError("optim", "tell() the losses of the last candidates before the next ask()");
  at::Tensor candidates = propose(n);
  asked_ = n;
  return candidates;
}

void GradientFreeOptimizer::tell(const at::Tensor& candidates, const at::Tensor& losses) {
  const bool fits = candidates.dim() == 2 && candidates.size(0) == asked_ && asked_ > 0 &&
                    candidates.size(1) == dimension() && losses.dim() == 1 && losses.numel() == asked_;
  if (!fits) {
    throw ConfigError("optim",
                      fmt::format("tell() wants the {} candidates of the last ask() and their losses: "
                                  "candidates {}, losses {}",
                                  asked_, shape(candidates), shape(losses)));
  }
  const at::Tensor points = candidates.detach().to(at::kCPU, at::kDouble).contiguous();
  const at::Tensor values = at::nan_to_num(losses.detach().to(at::kCPU, at::kDouble), kInfinity, kInfinity,
                                           kInfinity);  // minus infinity is no success either
  asked_ = 0;
  learn(points, values);
  const auto loss = values.accessor<double, 1>();
  for (int64_t i = 0; i < values.numel(); ++i) note(points[i], loss[i]);
}

void GradientFreeOptimizer::observe(const at::Tensor& point, double loss) {
  if (point.dim() != 1 || point.numel() != dimension()) {
    throw ConfigError("optim", fmt::format("a point has {} numbers: shape {}", dimension(), shape(point)));
  }
  note(point, std::isfinite(loss) ? loss : kInfinity);
}

void GradientFreeOptimizer::note(const at::Tensor& point, double loss) {
  counts_[1] += 1;
  if (loss >= best_loss()) return;
  counts_[0] = loss;
  best_.copy_(point.detach());
}

NamedTensors GradientFreeOptimizer::state() const {
  if (asked_ != 0) {
    throw ConfigError("optim",
                      "a search is saved when all candidates have been told, not between ask() and tell()");
  }
  NamedTensors state{{"best", best_}, {"counts", counts_}};
  for (auto& item : own_state()) state.push_back(std::move(item));
  for (auto& [name, tensor] : state) name = kind() + "/" + name;
  return state;
}

void GradientFreeOptimizer::load_state(const NamedTensors& state) {
  asked_ = 0;
  const NamedTensors own = this->state();
  std::map<std::string, at::Tensor> given(state.begin(), state.end());
  for (const auto& [name, tensor] : own) {
    const auto found = given.find(name);
    if (found == given.end()) {
      throw ConfigError(
          "optim",
          fmt::format("the saved search is not of the kind '{}', or lacks a tensor: {}", kind(), name));
    }
    if (found->second.sizes() != tensor.sizes() || found->second.scalar_type() != tensor.scalar_type()) {
      throw ConfigError("optim", fmt::format("the saved search does not fit: {} is {} there and {} here",
                                             name, shape(found->second), shape(tensor)));
    }
  }
  if (given.size() != own.size()) {
    throw ConfigError("optim", fmt::format("the saved search has {} tensors, the kind '{}' has {}",
                                           given.size(), kind(), own.size()));
  }
  for (const auto& [name, tensor] : own) tensor.copy_(given.at(name));
  loaded();
}

at::Tensor evaluate_over_ranks(GradientFreeOptimizer& optimizer, int64_t n, const PointLoss& loss,
                               const Communicator& communicator) {
  // Linear algebra may round differently on another machine, so rank 0's candidates are used. They are
  // sent as bytes, which every backend takes from the CPU.
  at::Tensor candidates = optimizer.ask(n).contiguous();
  candidates =
      tensor_of(communicator.broadcast_bytes(bytes_of(candidates), 0)).view({n, optimizer.dimension()});
  const int64_t begin = n * communicator.rank() / communicator.size();
  const int64_t end = n * (communicator.rank() + 1) / communicator.size();
  const at::Tensor own = at::empty({end - begin}, at::kDouble);
  for (int64_t i = begin; i < end; ++i) own[i - begin] = loss(candidates[i]);
  std::string all;
  for (const std::string& part : communicator.all_gather_bytes(bytes_of(own))) all += part;
  at::Tensor losses = tensor_of(all);
  optimizer.tell(candidates, losses);
  return losses;
}

}  // namespace lockstep
