#include "exported/operators.h"

#include <ATen/core/Tensor.h>
#include <c10/core/Scalar.h>
#include <dlfcn.h>
#include <fmt/format.h>
#include <lockstep/error.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <set>
#include <stdexcept>
#include <utility>

#include "base/mutex.h"
#include "exported/program.h"

namespace lockstep::exported {
namespace {

using Arguments = std::vector<c10::IValue>;

// --- numbers, as Python computes them ---

const c10::IValue& argument_at(const Arguments& arguments, size_t i) {
  if (i >= arguments.size()) throw ProgramError("a function of numbers has too few arguments");
  return arguments[i];
}

double real(const c10::IValue& value) {
  if (value.isDouble()) return value.toDouble();
  if (value.isInt()) return static_cast<double>(value.toInt());
  if (value.isBool()) return value.toBool() ? 1 : 0;
  throw ProgramError("a function of numbers got a value that is no number");
}

bool is_real(const c10::IValue& value) { return value.isDouble(); }

int64_t whole(const c10::IValue& value) {
  if (value.isInt()) return value.toInt();
  if (value.isBool()) return value.toBool() ? 1 : 0;
  throw ProgramError("a function of integers got a value that is none");
}

[[noreturn]] void overflow() { throw ProgramError("a size has more than 64 bits"); }

template <typename Whole, typename Real>
c10::IValue binary(const Arguments& arguments, const Whole& of_integers, const Real& of_reals) {
  const c10::IValue& a = argument_at(arguments, 0);
  const c10::IValue& b = argument_at(arguments, 1);
  if (is_real(a) || is_real(b)) return of_reals(real(a), real(b));
  return of_integers(whole(a), whole(b));
}

int64_t floor_quotient(int64_t a, int64_t b) {
  if (b == 0) throw ProgramError("a size is divided by zero");
  if (b == -1) {
    if (a == std::numeric_limits<int64_t>::min()) overflow();
    return -a;
  }
  const int64_t quotient = a / b;
  return a % b != 0 && (a < 0) != (b < 0) ? quotient - 1 : quotient;
}

c10::IValue add(const Arguments& arguments) {
  return binary(
      arguments,
      [](int64_t a, int64_t b) {
        int64_t sum = 0;
        if (__builtin_add_overflow(a, b, &sum)) overflow();
        return sum;
      },
      [](double a, double b) { return a + b; });
}

c10::IValue subtract(const Arguments& arguments) {
  return binary(
      arguments,
      [](int64_t a, int64_t b) {
        int64_t difference = 0;
        if (__builtin_sub_overflow(a, b, &difference)) overflow();
        return difference;
      },
      [](double a, double b) { return a - b; });
}

c10::IValue multiply(const Arguments& arguments) {
  return binary(
      arguments,
      [](int64_t a, int64_t b) {
        int64_t product = 0;
        if (__builtin_mul_overflow(a, b, &product)) overflow();
        return product;
      },
      [](double a, double b) { return a * b; });
}

c10::IValue floor_divide_numbers(const Arguments& arguments) {
  return binary(arguments, floor_quotient, [](double a, double b) { return std::floor(a / b); });
}

c10::IValue modulo(const Arguments& arguments) {
  return binary(
      arguments, [](int64_t a, int64_t b) { return a - floor_quotient(a, b) * b; },
      [](double a, double b) { return a - std::floor(a / b) * b; });
}

c10::IValue divide(const Arguments& arguments) {
  return real(argument_at(arguments, 0)) / real(argument_at(arguments, 1));
}

c10::IValue power(const Arguments& arguments) {
  const c10::IValue& base = argument_at(arguments, 0);
  const c10::IValue& exponent = argument_at(arguments, 1);
  if (is_real(base) || is_real(exponent) || whole(exponent) < 0) return std::pow(real(base), real(exponent));
  if (whole(exponent) > 64) overflow();
  int64_t result = 1;
  for (int64_t i = 0; i < whole(exponent); ++i) {
    if (__builtin_mul_overflow(result, whole(base), &result)) overflow();
  }
  return result;
}

c10::IValue negate(const Arguments& arguments) {
  const c10::IValue& value = argument_at(arguments, 0);
  if (is_real(value)) return -value.toDouble();
  return subtract({int64_t{0}, value});
}

c10::IValue maximum(const Arguments& arguments) {
  return real(argument_at(arguments, 0)) >= real(argument_at(arguments, 1)) ? arguments[0] : arguments[1];
}

c10::IValue minimum(const Arguments& arguments) {
  return real(argument_at(arguments, 0)) <= real(argument_at(arguments, 1)) ? arguments[0] : arguments[1];
}

template <typename Compare>
c10::IValue compare(const Arguments& arguments) {
  return binary(
      arguments, [](int64_t a, int64_t b) { return Compare()(a, b); },
      [](double a, double b) { return Compare()(a, b); });
}

c10::IValue logical_and(const Arguments& arguments) {
  return real(argument_at(arguments, 0)) != 0 && real(argument_at(arguments, 1)) != 0;
}

c10::IValue logical_or(const Arguments& arguments) {
  return real(argument_at(arguments, 0)) != 0 || real(argument_at(arguments, 1)) != 0;
}

c10::IValue logical_not(const Arguments& arguments) { return real(argument_at(arguments, 0)) == 0; }

c10::IValue choose(const Arguments& arguments) {
  return real(argument_at(arguments, 0)) != 0 ? argument_at(arguments, 1) : argument_at(arguments, 2);
}

c10::IValue to_real(const Arguments& arguments) { return real(argument_at(arguments, 0)); }

template <double (*Round)(double)>
c10::IValue rounded(const Arguments& arguments) {
  const double value = Round(real(argument_at(arguments, 0)));
  if (!(std::abs(value) < 9e18)) overflow();
  return static_cast<int64_t>(value);
}

template <double (*Function)(double)>
c10::IValue function_of(const Arguments& arguments) {
  return Function(real(argument_at(arguments, 0)));
}

// --- shapes ---

const at::Tensor& tensor_at(const Arguments& arguments) {
  if (!argument_at(arguments, 0).isTensor()) throw ProgramError("the size of a value that is no tensor");
  return arguments[0].toTensor();
}

c10::IValue size(const Arguments& arguments) {
  return tensor_at(arguments).size(whole(argument_at(arguments, 1)));
}
c10::IValue stride(const Arguments& arguments) {
  return tensor_at(arguments).stride(whole(argument_at(arguments, 1)));
}
c10::IValue element_count(const Arguments& arguments) { return tensor_at(arguments).numel(); }
c10::IValue storage_offset(const Arguments& arguments) { return tensor_at(arguments).storage_offset(); }

// The message of Python's assert, as a number function without result.
c10::IValue assert_number(const Arguments& arguments) {
  if (real(argument_at(arguments, 0)) != 0) return {};
  throw ProgramError(arguments.size() > 1 && arguments[1].isString() ? arguments[1].toStringRef()
                                                                     : "an assertion of the model failed");
}

struct NamedFunction {
  std::string_view target;
  NumberFunction function;
};

constexpr NamedFunction kNumberFunctions[] = {
    {"_operator.add", add},
    {"_operator.sub", subtract},
    {"_operator.mul", multiply},
    {"_operator.floordiv", floor_divide_numbers},
    {"_operator.mod", modulo},
    {"_operator.truediv", divide},
    {"_operator.pow", power},
    {"_operator.neg", negate},
    {"_operator.eq", compare<std::equal_to<>>},
    {"_operator.ne", compare<std::not_equal_to<>>},
    {"_operator.lt", compare<std::less<>>},
    {"_operator.le", compare<std::less_equal<>>},
    {"_operator.gt", compare<std::greater<>>},
    {"_operator.ge", compare<std::greater_equal<>>},
    {"_operator.and_", logical_and},
    {"_operator.or_", logical_or},
    {"_operator.not_", logical_not},
    {"torch.sym_not", logical_not},
    {"torch.sym_max", maximum},
    {"torch.sym_min", minimum},
    {"torch.sym_ite", choose},
    {"torch.sym_float", to_real},
    {"torch.sym_int", rounded<std::trunc>},
    {"math.floor", rounded<std::floor>},
    {"math.ceil", rounded<std::ceil>},
    {"math.trunc", rounded<std::trunc>},
    {"torch._sym_sqrt", function_of<std::sqrt>},
    {"torch.ops.aten.sym_size.int", size},
    {"torch.ops.aten.sym_stride.int", stride},
    {"torch.ops.aten.sym_numel.default", element_count},
    {"torch.ops.aten.sym_storage_offset.default", storage_offset},
    {"torch.ops.aten._assert_scalar.default", assert_number},
};

// --- operators that are not executed ---

struct Refusal {
  std::string_view name;  // a last * stands for any ending
  std::string_view reason;
};

constexpr Refusal kRefusals[] = {
    {"aten::from_file", "it reads and writes files"},
    {"aten::save", "it writes files"},
    {"aten::manual_seed", "it sets the random numbers of the whole process"},
    {"aten::seed", "it sets the random numbers of the whole process"},
    {"aten::set_data", "it replaces the memory of a tensor"},
    {"aten::set_*", "it replaces the memory of a tensor"},
    {"aten::set", "it replaces the memory of a tensor"},
    {"aten::resize_*", "it changes the memory of a tensor"},
    {"aten::sparse_resize_*", "it changes the memory of a tensor"},
    {"aten::backward", "it runs a backward pass inside the forward pass"},
    {"aten::retain_grad", "it changes how gradients are kept"},
    {"aten::requires_grad_", "it changes which gradients are computed"},
    {"aten::_backward", "it runs a backward pass inside the forward pass"},
    {"aten::_unsafe_index*", "it does not check its indices"},
    {"aten::_unsafe_masked_index*", "it does not check its indices"},
    {"aten::_batch_norm_with_update*", "evaluation mode cannot turn it off"},
};

// LibTorch's functions call its internal operators, whose names begin with _, after they have checked the
// arguments. A program may call those that programs of torch.export have, with and without
// run_decompositions(), and that check their arguments themselves or in argument_check().
constexpr std::string_view kInternalOperators[] = {
    "_adaptive_avg_pool2d",
    "_adaptive_avg_pool3d",
    "_aminmax",
    "_assert_async",
    "_assert_scalar",
    "_assert_tensor_metadata",
    "_batch_norm_impl_index",
    "_batch_norm_no_update",
    "_cast_*",
    "_cdist_forward",
    "_conj",
    "_conj_physical",
    "_convolution",
    "_convolution_mode",
    "_ctc_loss",
    "_embedding_bag",
    "_embedding_bag_forward_only",
    "_euclidean_dist",
    "_fft_c2c",
    "_fft_c2r",
    "_fft_r2c",
    "_fused_rms_norm",
    "_is_all_true",
    "_is_any_true",
    "_linalg_check_errors",
    "_linalg_det",
    "_linalg_eigh",
    "_linalg_slogdet",
    "_linalg_solve_ex",
    "_linalg_svd",
    "_local_scalar_dense",
    "_log_softmax",
    "_logcumsumexp",
    "_native_batch_norm_legit",
    "_native_batch_norm_legit_functional",
    "_native_batch_norm_legit_no_training",
    "_neg_view",
    "_pack_padded_sequence",
    "_pad_circular",
    "_pad_enum",
    "_pad_packed_sequence",
    "_pdist_forward",
    "_prelu_kernel",
    "_reshape_copy",
    "_safe_softmax",
    "_sample_dirichlet",
    "_scaled_dot_product_attention_math",
    "_scaled_dot_product_cudnn_attention",
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_fused_attention_overrideable",
    "_shape_as_tensor",
    "_softmax",
    "_stack",
    "_standard_gamma",
    "_to_copy",
    "_trilinear",
    "_unique",
    "_unique2",
    "_unsafe_view",
    "_upsample_bicubic2d_aa",
    "_upsample_bilinear2d_aa",
    "_upsample_lanczos2d_aa",
    "_upsample_nearest_exact1d",
    "_upsample_nearest_exact2d",
    "_upsample_nearest_exact3d",
    "_weight_norm",
    "_weight_norm_interface",
    "__*",  // Python's operators: __and__
};

// Whether the name is the pattern, of which a last * stands for any ending.
bool matches(std::string_view name, std::string_view pattern) {
  return pattern.ends_with('*') ? name.starts_with(pattern.substr(0, pattern.size() - 1)) : name == pattern;
}

// --- arguments that operators do not check ---

using Values = c10::ArrayRef<c10::IValue>;

[[noreturn]] void refuse_arguments(const char* reason) { throw ProgramError(reason); }

// The tensor arguments from `first` to `last` that are given have one element for each channel of the input.
template <size_t first, size_t last>
void check_channels(Values arguments) {
  const at::Tensor& input = arguments[0].toTensor();
  if (input.dim() < 2) refuse_arguments("its input has less than two dimensions");
  for (size_t i = first; i <= last; ++i) {
    if (!arguments[i].isTensor() || !arguments[i].toTensor().defined()) continue;
    const at::Tensor& each = arguments[i].toTensor();
    if (each.dim() == 1 && each.numel() == input.size(1)) continue;
    refuse_arguments("a weight or statistic of it has not one element for each channel");
  }
}

// (v, g, dim): over the first or the last dimension g has one element for each index of v.
void check_weight_norm(Values arguments) {
  const at::Tensor& v = arguments[0].toTensor();
  const int64_t dimension = arguments[2].toInt();
  if (dimension != 0 && dimension != v.dim() - 1) return;
  if (arguments[1].toTensor().numel() != v.size(dimension)) {
    refuse_arguments("it has not one length for each index of the weight");
  }
}

// (input, dimensions, ...)
void check_transform(Values arguments) {
  const at::Tensor& input = arguments[0].toTensor();
  const Values dimensions = arguments[1].toListRef();
  if (dimensions.empty()) refuse_arguments("it transforms no dimension");
  std::vector<bool> seen(static_cast<size_t>(input.dim()));
  for (const c10::IValue& each : dimensions) {
    const int64_t dimension = each.toInt();
    if (dimension < 0 || dimension >= input.dim() || seen[static_cast<size_t>(dimension)]) {
      refuse_arguments("it transforms a dimension that the input does not have, or one twice");
    }
    seen[static_cast<size_t>(dimension)] = true;
  }
}

// (input, dimensions, normalization, size of the last dimension)
void check_real_transform(Values arguments) {
  check_transform(arguments);
  const int64_t last = arguments[1].toListRef().back().toInt();
  const int64_t size = arguments[3].toInt();
  if (size < 1 || size / 2 + 1 != arguments[0].toTensor().size(last)) {
    refuse_arguments("its input has not the half of the size of the result");
  }
}

// (query, key, value, ...), each [batch, heads, length, width]
void check_attention(Values arguments) {
  const at::Tensor& query = arguments[0].toTensor();
  const at::Tensor& key = arguments[1].toTensor();
  const at::Tensor& value = arguments[2].toTensor();
  const bool fits = query.dim() == 4 && key.dim() == 4 && value.dim() == 4 && key.size(0) == query.size(0) &&
                    key.size(1) > 0 && query.size(1) % key.size(1) == 0 && key.size(3) == query.size(3) &&
                    value.sizes().slice(0, 3) == key.sizes().slice(0, 3);
  if (!fits) refuse_arguments("the sizes of its query, key and value do not fit each other");
}

struct CheckedOperator {
  std::string_view name;
  ArgumentCheck check;
};

constexpr CheckedOperator kCheckedOperators[] = {
    {"aten::native_batch_norm", check_channels<1, 4>},
    {"aten::cudnn_batch_norm", check_channels<1, 4>},
    {"aten::miopen_batch_norm", check_channels<1, 4>},
    {"aten::_native_batch_norm_legit", check_channels<1, 4>},
    {"aten::_native_batch_norm_legit_functional", check_channels<1, 4>},
    {"aten::_native_batch_norm_legit_no_training", check_channels<1, 4>},
    {"aten::_batch_norm_no_update", check_channels<1, 4>},
    {"aten::_weight_norm", check_weight_norm},
    {"aten::_weight_norm_interface", check_weight_norm},
    {"aten::_fft_c2c", check_transform},
    {"aten::_fft_r2c", check_transform},
    {"aten::_fft_c2r", check_real_transform},
    {"aten::_scaled_dot_product_cudnn_attention", check_attention},
    {"aten::_scaled_dot_product_efficient_attention", check_attention},
    {"aten::_scaled_dot_product_flash_attention", check_attention},
    {"aten::_scaled_dot_product_flash_attention_for_cpu", check_attention},
    {"aten::_scaled_dot_product_fused_attention_overrideable", check_attention},
};

// --- operators of LibTorch without a formula ---

// LibTorch gives every operator of its own an entry for autograd, which for these only throws in backward.
// torch.export writes them instead of others: run_decompositions() makes copy of x[i] = y.
constexpr std::string_view kWithoutFormula[] = {"aten::_aminmax",
                                                "aten::_embedding_bag_forward_only",
                                                "aten::_logcumsumexp",
                                                "aten::_sample_dirichlet",
                                                "aten::_stack",
                                                "aten::binomial",
                                                "aten::copy",
                                                "aten::floor_divide",
                                                "aten::floor_divide_",
                                                "aten::heaviside",
                                                "aten::heaviside_",
                                                "aten::histogram",
                                                "aten::native_channel_shuffle"};

// The operators that libraries of users have registered. LibTorch's dispatcher, which has them, belongs to
// the process as well, and does not know where an operator is from.
class LoadedOperators {
 public:
  static LoadedOperators& of_process() {
    static LoadedOperators loaded;
    return loaded;
  }

  void load(const std::filesystem::path& library);
  bool has(const OperatorName& name) {
    const base::MutexLock lock(mutex_);
    return names_.count({name.name, name.overload}) > 0;
  }

 private:
  using Name = std::pair<std::string, std::string>;

  static std::set<Name> registered() {
    std::set<Name> names;
    for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
      names.emplace(name.name, name.overload_name);
    }
    return names;
  }

  base::Mutex mutex_;
  std::set<void*> libraries_ LOCKSTEP_GUARDED_BY(mutex_);
  std::set<Name> names_ LOCKSTEP_GUARDED_BY(mutex_);
};

void LoadedOperators::load(const std::filesystem::path& library) {
  const base::MutexLock lock(mutex_);
  const auto fail = [&](const std::string& reason) {
    throw ConfigError("exported",
                      fmt::format("cannot load the operators of '{}': {}", library.string(), reason));
  };
  std::error_code error;
  const std::filesystem::path file = std::filesystem::canonical(library, error);
  if (error) fail(error.message());
  const std::set<Name> before = registered();
  void* const handle = ::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) fail(::dlerror());
  if (libraries_.count(handle) > 0) return;
  const size_t known = names_.size();
  for (const Name& name : registered()) {
    if (before.count(name) == 0) names_.insert(name);
  }
  if (names_.size() == known) {
    fail(
        "it registers no operators: TORCH_LIBRARY does so, and a program that is linked to the library has "
        "them "
        "already");
  }
  libraries_.insert(handle);
}

}  // namespace

void load_operator_library(const std::filesystem::path& library) {
  LoadedOperators::of_process().load(library);
}

bool has_gradient(const c10::OperatorHandle& operation) {
  using c10::DispatchKey;
  const std::string& name = operation.operator_name().name;
  if (std::find(std::begin(kWithoutFormula), std::end(kWithoutFormula), name) != std::end(kWithoutFormula)) {
    return false;
  }
  constexpr std::array kFormulas = {DispatchKey::CompositeImplicitAutograd, DispatchKey::Autograd,
                                    DispatchKey::AutogradCPU, DispatchKey::AutogradCUDA};
  return std::any_of(kFormulas.begin(), kFormulas.end(),
                     [&](DispatchKey key) { return operation.hasKernelForDispatchKey(key); });
}

std::optional<OperatorName> operator_name(std::string_view target) {
  constexpr std::string_view kPrefix = "torch.ops.";
  if (!target.starts_with(kPrefix)) return std::nullopt;
  target.remove_prefix(kPrefix.size());
  const size_t first = target.find('.');
  if (first == std::string_view::npos) return std::nullopt;
  const size_t second = target.find('.', first + 1);
  if (second == std::string_view::npos || target.find('.', second + 1) != std::string_view::npos) {
    return std::nullopt;
  }
  OperatorName name;
  name.space = target.substr(0, first);
  name.name = fmt::format("{}::{}", name.space, target.substr(first + 1, second - first - 1));
  name.overload = target.substr(second + 1);
  if (name.overload == "default") name.overload.clear();
  return name;
}

std::optional<std::string> refusal_of(const OperatorName& name) {
  if (LoadedOperators::of_process().has(name)) return std::nullopt;
  if (name.space != "aten") {
    return fmt::format(
        "its namespace is not one of LibTorch's models: --operators LIBRARY (in programs "
        "ExportedModel::load_operators) loads a library with '{}'",
        name.name);
  }
  for (const Refusal& refusal : kRefusals) {
    if (matches(name.name, refusal.name)) return std::string(refusal.reason);
  }
  const std::string_view own = std::string_view(name.name).substr(name.space.size() + 2);
  const auto allows = [&](std::string_view pattern) { return matches(own, pattern); };
  if (own.starts_with('_') &&
      std::none_of(std::begin(kInternalOperators), std::end(kInternalOperators), allows)) {
    return "it is an internal operator of LibTorch, which need not check its arguments: call a public "
           "function "
           "instead, or export the model without run_decompositions()";
  }
  return std::nullopt;
}

ArgumentCheck argument_check(const OperatorName& name) {
  for (const CheckedOperator& each : kCheckedOperators) {
    if (each.name == name.name) return each.check;
  }
  return nullptr;
}

NumberFunction number_function(std::string_view target) {
  for (const NamedFunction& known : kNumberFunctions) {
    if (known.target == target) return known.function;
  }
  return nullptr;
}

bool is_assumption(std::string_view target) {
  return target == "torch.ops.aten._assert_tensor_metadata.default" ||
         target == "torch.ops.aten.sym_constrain_range_for_size.default" ||
         target == "torch.ops.aten.sym_constrain_range.default";
}

std::optional<EvaluationSwitch> evaluation_switch(const OperatorName& name) {
  struct Switched {
    std::string_view name;
    std::string_view argument;
  };
  constexpr Switched kSwitched[] = {
      {"aten::batch_norm", "training"},
      {"aten::native_batch_norm", "training"},
      {"aten::cudnn_batch_norm", "training"},
      {"aten::miopen_batch_norm", "training"},
      {"aten::_native_batch_norm_legit", "training"},
      {"aten::_native_batch_norm_legit_functional", "training"},
      {"aten::_batch_norm_impl_index", "training"},
      {"aten::instance_norm", "use_input_stats"},
      {"aten::dropout", "train"},
      {"aten::dropout_", "train"},
      {"aten::native_dropout", "train"},
      {"aten::feature_dropout", "train"},
      {"aten::feature_dropout_", "train"},
      {"aten::alpha_dropout", "train"},
      {"aten::alpha_dropout_", "train"},
      {"aten::feature_alpha_dropout", "train"},
      {"aten::feature_alpha_dropout_", "train"},
      {"aten::rrelu", "training"},
      {"aten::rrelu_", "training"},
      {"aten::rrelu_with_noise", "training"},
      {"aten::lstm", "train"},
      {"aten::gru", "train"},
      {"aten::rnn_tanh", "train"},
      {"aten::rnn_relu", "train"},
  };
  for (const Switched& each : kSwitched) {
    if (each.name == name.name) return EvaluationSwitch{each.argument, false};
  }
  constexpr std::string_view kAttention = "scaled_dot_product_";
  const std::string_view own = std::string_view(name.name).substr(name.space.size() + 2);
  if (own.starts_with(kAttention) || (own.starts_with('_') && own.substr(1).starts_with(kAttention))) {
    return EvaluationSwitch{"dropout_p", 0.0};
  }
  return std::nullopt;
}

bool only_evaluates(const OperatorName& name) {
  return name.name == "aten::_native_batch_norm_legit_no_training" ||
         name.name == "aten::_batch_norm_no_update";
}

bool draws_always(const OperatorName& name) {
  constexpr std::string_view kDrawing[] = {
      "aten::bernoulli",  "aten::bernoulli_", "aten::rand",         "aten::rand_like",   "aten::randn",
      "aten::randn_like", "aten::randint",    "aten::randint_like", "aten::randperm",    "aten::normal",
      "aten::normal_",    "aten::uniform",    "aten::uniform_",     "aten::multinomial", "aten::exponential_",
      "aten::random_",    "aten::poisson",    "aten::cauchy_",      "aten::log_normal_", "aten::geometric_"};
  return std::find(std::begin(kDrawing), std::end(kDrawing), name.name) != std::end(kDrawing);
}

}  // namespace lockstep::exported
