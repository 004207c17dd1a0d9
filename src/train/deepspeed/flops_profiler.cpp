#include "train/deepspeed/flops_profiler.h"

#include <ATen/core/Tensor.h>
#include <ATen/record_function.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <lockstep/error.h>
#include <lockstep/weights.h>
#include <torch/torch.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>
#include <iterator>
#include <map>
#include <memory>
#include <string_view>

#include "base/file.h"
#include "base/log.h"
#include "comm/communicator_internal.h"

namespace lockstep::deepspeed {
namespace {

using Inputs = c10::ArrayRef<const c10::IValue>;
using Rule = Cost (*)(Inputs inputs);

bool is_tensor(Inputs inputs, size_t index) {
  return index < inputs.size() && inputs[index].isTensor() && inputs[index].toTensor().defined();
}

int64_t numel(Inputs inputs, size_t index) {
  return is_tensor(inputs, index) ? inputs[index].toTensor().numel() : 1;
}

Cost of_macs(int64_t macs, int64_t others = 0) { return {2 * macs + others, macs}; }

Cost element_wise(Inputs inputs) { return {numel(inputs, 0), 0}; }

Cost linear(Inputs inputs) { return of_macs(numel(inputs, 0) * inputs[1].toTensor().size(0)); }

// Each element of the left operand is multiplied with each column of the right one.
int64_t product_macs(const at::Tensor& left, const at::Tensor& right) {
  return left.numel() * (right.dim() > 1 ? right.size(-1) : 1);
}

Cost product(Inputs inputs) { return of_macs(product_macs(inputs[0].toTensor(), inputs[1].toTensor())); }

// A vector is the bias of a linear layer, which is not counted there either.
Cost product_and_sum(Inputs inputs) {
  const int64_t sums = inputs[0].toTensor().dim() > 1 ? numel(inputs, 0) : 0;
  return of_macs(product_macs(inputs[1].toTensor(), inputs[2].toTensor()), sums);
}

// Each input element is multiplied with the kernel of each output channel. The bias is not counted: the
// extent of the output is not among the inputs.
Cost transposed_convolution(Inputs inputs) {
  const at::Tensor& weight = inputs[1].toTensor();
  return of_macs(numel(inputs, 0) * (weight.numel() / weight.size(0)));
}

// input, weight, bias, stride, padding, dilation, and "transposed" of the general operator.
// Each output is a product with the kernel.
Cost convolution(Inputs inputs) {
  if (inputs.size() > 6 && inputs[6].isBool() && inputs[6].toBool()) return transposed_convolution(inputs);
  const at::Tensor& input = inputs[0].toTensor();
  const at::Tensor& weight = inputs[1].toTensor();
  const int64_t spatial = weight.dim() - 2;
  const bool is_batched = input.dim() == weight.dim();
  int64_t positions = is_batched ? input.size(0) : 1;
  const auto at_dim = [&](size_t argument, int64_t dim, int64_t otherwise) {
    if (argument >= inputs.size() || !inputs[argument].isIntList()) return otherwise;
    const auto values = inputs[argument].toIntVector();
    if (values.empty()) return otherwise;
    return values[std::min(static_cast<size_t>(dim), values.size() - 1)];
  };
  for (int64_t dim = 0; dim < spatial; ++dim) {
    const int64_t extent = input.size(dim - spatial);
    const int64_t reach = at_dim(5, dim, 1) * (weight.size(dim + 2) - 1);
    // A padding given by name: "same" keeps the extent, "valid" adds nothing.
    int64_t padded = 2 * at_dim(4, dim, 0);
    if (inputs.size() > 4 && inputs[4].isString()) padded = inputs[4].toStringRef() == "same" ? reach : 0;
    positions *= (extent + padded - reach - 1) / at_dim(3, dim, 1) + 1;
  }
  const int64_t outputs = positions * weight.size(0);
  return of_macs(positions * weight.numel(), is_tensor(inputs, 2) ? outputs : 0);
}

Cost attention(Inputs inputs) {
  const at::Tensor& query = inputs[0].toTensor();
  const at::Tensor& key = inputs[1].toTensor();
  const at::Tensor& value = inputs[2].toTensor();
  const int64_t pairs = query.numel() / query.size(-1) * key.size(-2);
  return of_macs(pairs * query.size(-1) + pairs * value.size(-1));
}

Cost norm_with_weight_at(Inputs inputs, size_t weight) {
  return {numel(inputs, 0) * (is_tensor(inputs, weight) ? 5 : 4), 0};
}

// input, weight, bias, running_mean, running_var, training
Cost batch_norm(Inputs inputs) {
  const bool trains = inputs.size() > 5 && inputs[5].isBool() && inputs[5].toBool();
  if (trains) return norm_with_weight_at(inputs, 1);
  return {numel(inputs, 0) * (is_tensor(inputs, 1) ? 2 : 1), 0};
}

Cost instance_norm(Inputs inputs) { return norm_with_weight_at(inputs, 1); }
Cost layer_norm(Inputs inputs) { return norm_with_weight_at(inputs, 2); }

// The larger operand, over which the other one is broadcast.
Cost broadcast_pair(Inputs inputs) { return {std::max(numel(inputs, 0), numel(inputs, 1)), 0}; }

// Not counted, with everything that it calls.
Cost nothing(Inputs) { return {}; }

struct Named {
  std::string_view op;
  Rule rule;
};

constexpr std::array kRules = {
    Named{"aten::linear", linear},
    Named{"aten::matmul", product},
    Named{"aten::mm", product},
    Named{"aten::bmm", product},
    Named{"aten::mv", product},
    Named{"aten::addmm", product_and_sum},
    Named{"aten::baddbmm", product_and_sum},
    Named{"aten::conv1d", convolution},
    Named{"aten::conv2d", convolution},
    Named{"aten::conv3d", convolution},
    Named{"aten::convolution", convolution},
    Named{"aten::conv_transpose1d", transposed_convolution},
    Named{"aten::conv_transpose2d", transposed_convolution},
    Named{"aten::conv_transpose3d", transposed_convolution},
    Named{"aten::scaled_dot_product_attention", attention},
    Named{"aten::batch_norm", batch_norm},
    Named{"aten::instance_norm", instance_norm},
    Named{"aten::layer_norm", layer_norm},
    Named{"aten::group_norm", layer_norm},
    Named{"aten::relu", element_wise},
    Named{"aten::relu_", element_wise},
    Named{"aten::relu6", element_wise},
    Named{"aten::prelu", element_wise},
    Named{"aten::elu", element_wise},
    Named{"aten::elu_", element_wise},
    Named{"aten::leaky_relu", element_wise},
    Named{"aten::leaky_relu_", element_wise},
    Named{"aten::silu", element_wise},
    Named{"aten::silu_", element_wise},
    Named{"aten::gelu", element_wise},
    Named{"aten::tanh", element_wise},
    Named{"aten::sigmoid", element_wise},
    Named{"aten::softmax", element_wise},
    Named{"aten::log_softmax", element_wise},
    Named{"aten::max_pool1d", element_wise},
    Named{"aten::max_pool2d", element_wise},
    Named{"aten::max_pool3d", element_wise},
    Named{"aten::avg_pool1d", element_wise},
    Named{"aten::avg_pool2d", element_wise},
    Named{"aten::avg_pool3d", element_wise},
    Named{"aten::adaptive_avg_pool1d", element_wise},
    Named{"aten::adaptive_avg_pool2d", element_wise},
    Named{"aten::adaptive_avg_pool3d", element_wise},
    Named{"aten::adaptive_max_pool1d", element_wise},
    Named{"aten::adaptive_max_pool2d", element_wise},
    Named{"aten::adaptive_max_pool3d", element_wise},
    Named{"aten::dropout", nothing},
    Named{"aten::dropout_", nothing},
    Named{"aten::feature_dropout", nothing},
    Named{"aten::embedding", nothing},
    Named{"aten::add", broadcast_pair},
    Named{"aten::add_", broadcast_pair},
    Named{"aten::sub", broadcast_pair},
    Named{"aten::sub_", broadcast_pair},
    Named{"aten::mul", broadcast_pair},
    Named{"aten::mul_", broadcast_pair},
    Named{"aten::div", broadcast_pair},
    Named{"aten::div_", broadcast_pair},
};

}  // namespace

std::optional<Cost> cost_of(std::string_view op, Inputs inputs) {
  const auto* found =
      std::find_if(kRules.begin(), kRules.end(), [&](const Named& named) { return named.op == op; });
  if (found == kRules.end() || !is_tensor(inputs, 0)) return std::nullopt;
  return found->rule(inputs);
}

namespace {

using Clock = std::chrono::steady_clock;

struct Recording {
  c10::Device device;
  OperationListener& listener;
  bool is_inside = false;  // inside a counted operation
  std::string module = {};
};

// LibTorch's callbacks are plain functions and run in one thread, so the state is thread-local.
thread_local std::unique_ptr<Recording> recording;

struct Counted : at::ObserverContext {
  Clock::time_point began = Clock::now();
};

// A scope of the user.
struct Entered : at::ObserverContext {
  explicit Entered(std::string outer_) : outer(std::move(outer_)) {}
  std::string outer;
};

bool is_scope(const at::RecordFunction& function) { return function.scope() == at::RecordScope::USER_SCOPE; }

std::unique_ptr<at::ObserverContext> on_begin(const at::RecordFunction& function) {
  if (!recording || recording->is_inside) return nullptr;
  if (is_scope(function)) {
    if (function.isAsync()) return nullptr;  // a collective of Gloo, which ends in another thread
    return std::make_unique<Entered>(std::exchange(recording->module, function.name()));
  }
  const auto cost = cost_of(function.name(), function.inputs());
  if (!cost) return nullptr;
  recording->listener.began(*cost, function.inputs(), recording->module);
  recording->is_inside = true;
  return std::make_unique<Counted>();
}

void on_end(const at::RecordFunction& function, at::ObserverContext* context) {
  if (context == nullptr || !recording) return;
  if (is_scope(function)) {
    recording->module = std::move(static_cast<Entered*>(context)->outer);
    return;
  }
  comm::wait_for_device(recording->device);
  recording->listener.ended(Clock::now() - static_cast<Counted*>(context)->began);
  recording->is_inside = false;
}

}  // namespace

OperationRecorder::OperationRecorder(c10::Device device, OperationListener& listener) {
  recording = std::make_unique<Recording>(Recording{device, listener});
  handle_ = at::addThreadLocalCallback(at::RecordFunctionCallback(on_begin, on_end)
                                           .needsInputs(true)
                                           .scopes({at::RecordScope::FUNCTION, at::RecordScope::USER_SCOPE}));
}

OperationRecorder::~OperationRecorder() {
  at::removeCallback(handle_);
  recording = nullptr;
}

namespace {

// "Conv2d" of "torch::nn::Conv2dImpl", "Sharded<Block>" of "lockstep::ShardedImpl<net::BlockImpl, ...>".
std::string short_type(std::string_view type) {
  const size_t arguments = type.find('<');
  std::string_view name = type.substr(0, arguments);
  if (const size_t colon = name.rfind(':'); colon != std::string_view::npos) name.remove_prefix(colon + 1);
  constexpr std::string_view kImpl = "Impl";
  if (name.size() > kImpl.size() && name.substr(name.size() - kImpl.size()) == kImpl) {
    name.remove_suffix(kImpl.size());
  }
  if (arguments == std::string_view::npos) return std::string(name);
  const std::string_view rest = type.substr(arguments + 1);
  return std::string(name) + "<" + short_type(rest.substr(0, rest.find_first_of("<>,"))) + ">";
}

// False if stage 3 has sharded the parameter.
bool is_there(const at::Tensor& tensor) {
  return tensor.defined() && tensor.has_storage() && tensor.numel() > 0 &&
         tensor.unsafeGetTensorImpl()->storage_initialized();
}

bool overlaps(const at::Tensor& tensor, const at::Tensor& parameter) {
  if (!is_there(parameter)) return false;
  const auto* begin = static_cast<const char*>(parameter.const_data_ptr());
  const auto* at = static_cast<const char*>(tensor.const_data_ptr());
  return at >= begin && at < begin + parameter.nbytes();
}

}  // namespace

ModelProfile::ModelProfile(const torch::nn::Module& model) { add(model, "", 0, 0); }

size_t ModelProfile::add(const torch::nn::Module& module, std::string name, int depth, size_t parent) {
  const size_t index = parts_.size();
  parts_.push_back({name, short_type(module.name()), depth});
  parents_.push_back(parent);
  for (const auto& [unused, parameter] : named_parameters(module)) {  // tied parameters once
    parts_[index].parameters += parameter.numel();
  }
  for (const at::Tensor& parameter : module.parameters(/*recurse=*/false)) {
    owned_.push_back({parameter, index});
  }
  for (const auto& child : module.named_children()) {
    add(*child.value(), name.empty() ? child.key() : name + "." + child.key(), depth + 1, index);
  }
  return index;
}

// A view of a parameter, for example a transposed weight, has the parameter's memory.
size_t ModelProfile::owner_of(c10::ArrayRef<const c10::IValue> inputs) const {
  for (const c10::IValue& input : inputs) {
    if (!input.isTensor() || !is_there(input.toTensor())) continue;
    const at::Tensor& tensor = input.toTensor();
    const auto found = std::find_if(owned_.begin(), owned_.end(),
                                    [&](const Owned& owned) { return overlaps(tensor, owned.parameter); });
    if (found != owned_.end()) return found->part;
  }
  return 0;
}

// nullopt: the model, or a scope that is no module.
std::optional<size_t> ModelProfile::part_named(std::string_view module) const {
  const auto found =
      std::find_if(parts_.begin() + 1, parts_.end(), [&](const Part& part) { return part.name == module; });
  if (found == parts_.end()) return std::nullopt;
  return static_cast<size_t>(found - parts_.begin());
}

void ModelProfile::began(const Cost& cost, c10::ArrayRef<const c10::IValue> inputs, std::string_view module) {
  const std::optional<size_t> named = part_named(module);
  running_ = named ? *named : owner_of(inputs);
  running_cost_ = cost;
}

void ModelProfile::ended(std::chrono::nanoseconds time) {
  for (size_t part = running_;; part = parents_[part]) {
    parts_[part].cost += running_cost_;
    parts_[part].time += time;
    if (part == 0) return;
  }
}

void ModelProfile::clear() {
  for (Part& part : parts_) {
    part.cost = {};
    part.time = {};
  }
}

namespace {

using ProfilePart = ModelProfile::Part;

double seconds(std::chrono::nanoseconds time) { return std::chrono::duration<double>(time).count(); }

std::string time_text(double time_s) {
  if (time_s >= 1) return fmt::format("{:.2f} s", time_s);
  if (time_s >= 1e-3) return fmt::format("{:.2f} ms", time_s * 1e3);
  return fmt::format("{:.2f} us", time_s * 1e6);
}

double ratio(double part, double whole) { return whole > 0 ? part / whole : 0; }

std::string plain_text(double count) { return count_text(count, ""); }
std::string macs_text(double macs) { return count_text(macs, "MACs"); }
std::string rate_text(double flops, double time_s) { return count_text(ratio(flops, time_s), "FLOPS"); }

void add_line(std::string& page, std::string_view what, const std::string& value) {
  fmt::format_to(std::back_inserter(page), "{:<70}  {}\n", fmt::format("{}:", what), value);
}

std::string summary(const ProfiledStep& step, const ProfilePart& model, double recompute) {
  // The average forward of one micro batch.
  const auto micro_batches = static_cast<double>(step.batch.accumulation_steps);
  const double flops = static_cast<double>(model.cost.flops) / micro_batches;
  const double forward = seconds(step.forward) / micro_batches;
  const double backward = seconds(step.backward) / micro_batches;
  const double all = seconds(step.forward + step.backward + step.update);
  const double backward_factor = 2 + recompute;
  std::string page;
  add_line(page, "world size", std::to_string(step.ranks));
  add_line(page, "batch size per rank", std::to_string(step.batch.micro_batch_size));
  add_line(page, "micro batches of a step", std::to_string(step.batch.accumulation_steps));
  add_line(page, "params of model", plain_text(static_cast<double>(model.parameters)));
  add_line(page, "fwd MACs per rank", macs_text(static_cast<double>(model.cost.macs) / micro_batches));
  add_line(page, "fwd flops per rank", plain_text(flops));
  add_line(page, "fwd latency", time_text(forward));
  add_line(page, "fwd FLOPS per rank = fwd flops / fwd latency", rate_text(flops, forward));
  add_line(page, "bwd latency", time_text(backward));
  add_line(page, fmt::format("bwd FLOPS per rank = {:g} * fwd flops / bwd latency", backward_factor),
           rate_text(backward_factor * flops, backward));
  add_line(page,
           fmt::format("fwd+bwd FLOPS per rank = {:g} * fwd flops / (fwd+bwd latency)", backward_factor + 1),
           rate_text((backward_factor + 1) * flops, forward + backward));
  add_line(page, "step latency", time_text(seconds(step.update)));
  add_line(page, "iter latency = micro batches * (fwd+bwd latency) + step latency", time_text(all));
  add_line(
      page,
      fmt::format("FLOPS per rank = micro batches * {:g} * fwd flops / iter latency", backward_factor + 1),
      rate_text(micro_batches * (backward_factor + 1) * flops, all));
  add_line(page, "samples/second",
           fmt::format("{:.2f}", ratio(static_cast<double>(step.batch.train_batch_size), all)));
  return page;
}

// All modules of one type at one depth.
struct TypeTotal {
  std::string type;
  double parameters = 0;
  double macs = 0;
  double time_s = 0;
};

std::vector<TypeTotal> totals_at(const std::vector<ProfilePart>& parts, int depth, double micro_batches) {
  std::map<std::string, TypeTotal> totals;
  for (const ProfilePart& part : parts) {
    if (part.depth != depth) continue;
    TypeTotal& total = totals[part.type];
    total.type = part.type;
    total.parameters += static_cast<double>(part.parameters);
    total.macs += static_cast<double>(part.cost.macs) / micro_batches;
    total.time_s += seconds(part.time) / micro_batches;
  }
  std::vector<TypeTotal> list;
  for (auto& [type, total] : totals) list.push_back(std::move(total));
  return list;
}

template <typename Text>
std::string top(std::vector<TypeTotal> totals, double TypeTotal::*by, int64_t count, Text text) {
  std::stable_sort(totals.begin(), totals.end(),
                   [by](const TypeTotal& a, const TypeTotal& b) { return a.*by > b.*by; });
  std::vector<std::string> shown;
  for (size_t i = 0; i < totals.size() && i < static_cast<size_t>(count); ++i) {
    shown.push_back(fmt::format("{} {}", totals[i].type, text(totals[i].*by)));
  }
  return fmt::format("{}", fmt::join(shown, ", "));
}

std::string top_modules(const std::vector<ProfilePart>& parts, const DeepSpeedConfig::FlopsProfiler& options,
                        double micro_batches) {
  const auto deepest =
      std::max_element(parts.begin(), parts.end(),
                       [](const ProfilePart& a, const ProfilePart& b) { return a.depth < b.depth; });
  const int64_t last =
      options.module_depth < 0 ? deepest->depth : std::min<int64_t>(options.module_depth, deepest->depth);
  std::string page;
  for (int depth = 0; depth <= last; ++depth) {
    const std::vector<TypeTotal> totals = totals_at(parts, depth, micro_batches);
    fmt::format_to(std::back_inserter(page),
                   "depth {}:\n    params      - {}\n    MACs        - {}\n    fwd latency - {}\n", depth,
                   top(totals, &TypeTotal::parameters, options.top_modules, plain_text),
                   top(totals, &TypeTotal::macs, options.top_modules, macs_text),
                   top(totals, &TypeTotal::time_s, options.top_modules, time_text));
  }
  return page;
}

std::string tree(const ModelProfile& profile, double micro_batches) {
  const ProfilePart& model = profile.model();
  const auto percent = [](double part, double whole) {
    return fmt::format("{:.2f}%", 100 * ratio(part, whole));
  };
  std::string page;
  for (const ProfilePart& part : profile.parts()) {
    const std::string last = part.name.substr(part.name.rfind('.') + 1);
    const auto macs = static_cast<double>(part.cost.macs);
    const double time_s = seconds(part.time);
    fmt::format_to(std::back_inserter(page), "{:{}}{}{}: {} = {} Params, {} = {} MACs, {} = {} latency, {}\n",
                   "", 2 * part.depth, last.empty() ? "" : fmt::format("({}) ", last), part.type,
                   plain_text(static_cast<double>(part.parameters)),
                   percent(static_cast<double>(part.parameters), static_cast<double>(model.parameters)),
                   macs_text(macs / micro_batches), percent(macs, static_cast<double>(model.cost.macs)),
                   time_text(time_s / micro_batches), percent(time_s, seconds(model.time)),
                   rate_text(static_cast<double>(part.cost.flops), time_s));
  }
  return page;
}

}  // namespace

std::string count_text(double count, std::string_view unit) {
  constexpr std::array<std::pair<double, char>, 4> kPrefixes = {
      {{1e12, 'T'}, {1e9, 'G'}, {1e6, 'M'}, {1e3, 'K'}}};
  for (const auto& [size, prefix] : kPrefixes) {
    if (count >= size) return fmt::format("{:.2f} {}{}", count / size, prefix, unit);
  }
  return fmt::format("{:g}{}{}", count, unit.empty() ? "" : " ", unit);
}

std::string profile_text(const ProfiledStep& step, const ModelProfile& profile,
                         const DeepSpeedConfig::FlopsProfiler& options) {
  const auto micro_batches = static_cast<double>(step.batch.accumulation_steps);
  std::string page = fmt::format(
      "-------------------------- Flops Profiler --------------------------\n"
      "Step {}, counted from 0; one micro batch of one rank. MACs: multiply-accumulates; flops:\n"
      "floating-point operations; FLOPS: flops a second; latency: time.\n\n",
      step.step);
  page += summary(step, profile.model(), options.recompute_fwd_factor);
  page += fmt::format(
      "\n-------------------------- Modules --------------------------\n"
      "The {} that cost most at each depth:\n",
      options.top_modules);
  page += top_modules(profile.parts(), options, micro_batches);
  if (!options.detailed) return page;
  page +=
      "\n-------------------------- Tree --------------------------\n"
      "An operation counts for the module whose parameter it uses, and for those around it; one that\n"
      "uses none for the model alone. Latency is that of the counted operations.\n";
  return page + tree(profile, micro_batches);
}

namespace {

void write(const std::filesystem::path& path, const std::string& page) {
  try {
    if (path.has_parent_path()) std::filesystem::create_directories(path.parent_path());
    base::publish_file(path, page);
    base::log_info("engine", "the flops profile is in {}", path.string());
  } catch (const std::exception& error) {
    base::log_warning("engine", "the flops profile could not be written: {}", error.what());
  }
}

}  // namespace

FlopsProfiler::FlopsProfiler(const DeepSpeedConfig::FlopsProfiler& options, const torch::nn::Module& model,
                             c10::Device device)
    : options_(options), device_(device), profile_(model) {}

void FlopsProfiler::begin_forward(int64_t step) {
  if (step == options_.profile_step) recorder_.emplace(device_, profile_);
}

void FlopsProfiler::after_step(const ProfiledStep& step) {
  if (step.step != options_.profile_step) return;
  const std::string page = profile_text(step, profile_, options_);
  profile_.clear();
  if (options_.output_file && !options_.output_file->empty()) {
    write(*options_.output_file, page);
  } else {
    std::fputs(page.c_str(), stdout);
    std::fflush(stdout);
  }
}

}  // namespace lockstep::deepspeed
