#include "config/deepspeed/value.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <cstdlib>
#include <stdexcept>
#include <utility>

#include "base/number.h"

namespace lockstep::deepspeed {
namespace {

using config::HjsonNode;
using Kind = HjsonNode::Kind;

[[noreturn]] void expected(const std::string& what) { throw std::invalid_argument(what); }

std::string in_range(const Range& range) {
  const auto text = [](double value) { return fmt::format("{:.15g}", value); };
  std::string result;
  if (range.least && range.most && !range.above && !range.below) {
    return fmt::format(" from {} to {}", text(*range.least), text(*range.most));
  }
  if (range.least) result = fmt::format(" {} {}", range.above ? "above" : "of at least", text(*range.least));
  if (range.most) {
    result += fmt::format("{} {} {}", result.empty() ? "" : " and", range.below ? "below" : "of at most",
                          text(*range.most));
  }
  return result;
}

bool is_in(double value, const Range& range) {
  if (range.least && (value < *range.least || (range.above && value == *range.least))) return false;
  return !range.most || value < *range.most || (!range.below && value == *range.most);
}

bool equal_ignoring_case(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](unsigned char x, unsigned char y) { return std::tolower(x) == std::tolower(y); });
}

// strtod reads JSON numbers in the C locale. Lockstep sets no other locale.
double real_of(const HjsonNode& node) { return std::strtod(node.text.c_str(), nullptr); }

// Accepts 5e8 and 1.0 as well.
std::optional<int64_t> whole_of(const HjsonNode& node) {
  if (const auto integer = base::parse_integer(node.text)) return integer;
  constexpr double kExact = 9007199254740992;  // a double holds every whole number up to here
  const double real = real_of(node);
  if (!std::isfinite(real) || real != std::floor(real) || std::abs(real) > kExact) return std::nullopt;
  return static_cast<int64_t>(real);
}

// Names of collectives, each with the operation of Communicator.
constexpr std::array<std::pair<std::string_view, std::string_view>, 12> kOperations = {{
    {"all_reduce", "all_reduce"},
    {"all_reduce_coalesced", "all_reduce"},
    {"all_gather", "all_gather"},
    {"all_gather_into_tensor", "all_gather"},
    {"reduce_scatter", "reduce_scatter"},
    {"reduce_scatter_tensor", "reduce_scatter"},
    {"all_to_all", "all_to_all"},
    {"all_to_all_single", "all_to_all"},
    {"broadcast", "broadcast"},
    {"gather", "gather"},
    {"scatter", "scatter"},
    {"barrier", "barrier"},
}};

}  // namespace

bool read_bool(const HjsonNode& node) {
  if (node.kind != Kind::kBool) expected("true or false");
  return node.truth;
}

int64_t read_integer(const HjsonNode& node, const Range& range) {
  const std::optional<int64_t> value = node.kind == Kind::kNumber ? whole_of(node) : std::nullopt;
  if (!value || !is_in(static_cast<double>(*value), range)) expected("a whole number" + in_range(range));
  return *value;
}

double read_real(const HjsonNode& node, const Range& range) {
  const double value = node.kind == Kind::kNumber ? real_of(node) : std::nan("");
  if (!std::isfinite(value) || !is_in(value, range)) expected("a number" + in_range(range));
  return value;
}

std::string read_text(const HjsonNode& node) {
  if (node.kind != Kind::kText) expected("a string");
  return node.text;
}

std::vector<std::string> read_texts(const HjsonNode& node) {
  if (node.kind != Kind::kArray) expected("a list of strings");
  std::vector<std::string> texts;
  for (const HjsonNode& item : node.items) {
    if (item.kind != Kind::kText) expected("a list of strings");
    texts.push_back(item.text);
  }
  return texts;
}

std::array<double, 2> read_pair(const HjsonNode& node, const Range& range) {
  const std::string what = "a list of two numbers" + in_range(range);
  if (node.kind != Kind::kArray || node.items.size() != 2) expected(what);
  std::array<double, 2> pair{};
  for (size_t i = 0; i < 2; ++i) {
    const double value = node.items[i].kind == Kind::kNumber ? real_of(node.items[i]) : std::nan("");
    if (!std::isfinite(value) || !is_in(value, range)) expected(what);
    pair[i] = value;
  }
  return pair;
}

bool is_name(const HjsonNode& node, std::string_view name) {
  return node.kind == Kind::kText && equal_ignoring_case(name, node.text);
}

void fail_name(const std::vector<std::string_view>& names) {
  expected(names.size() == 1 ? std::string(names[0]) : fmt::format("one of {}", fmt::join(names, ", ")));
}

std::string shown(const HjsonNode& node) {
  switch (node.kind) {
    case Kind::kText: {
      const bool swallowed = !node.quoted && node.text.find_first_of(",}]") != std::string::npos;
      return config::quoted_for_message(node.text) +
             (swallowed ? "; an unquoted string reaches to the end of its line" : "");
    }
    case Kind::kNumber: return node.text.size() > 40 ? node.text.substr(0, 40) + "..." : node.text;
    case Kind::kBool: return node.truth ? "true" : "false";
    default: return std::string(config::kind_name(node.kind));
  }
}

bool equals_json(const HjsonNode& node, std::string_view json) {
  switch (node.kind) {
    case Kind::kNull: return json == "null";
    case Kind::kBool: return json == (node.truth ? "true" : "false");
    case Kind::kNumber: {
      char* end = nullptr;
      const std::string text(json);
      return std::strtod(text.c_str(), &end) == real_of(node) && end != text.c_str();
    }
    case Kind::kText: return json == fmt::format("\"{}\"", node.text);
    case Kind::kArray: return json == "[]" && node.items.empty();
    case Kind::kObject: return json == "{}" && node.members.empty();
  }
  return false;
}

using C = DeepSpeedConfig;

const Names<C::Dtype>& names_of(C::Dtype) {
  static const Names<C::Dtype> names = {
      {"fp32", C::Dtype::kFp32},          {"fp16", C::Dtype::kFp16},
      {"bf16", C::Dtype::kBf16},          {"float32", C::Dtype::kFp32},
      {"float16", C::Dtype::kFp16},       {"bfloat16", C::Dtype::kBf16},
      {"float", C::Dtype::kFp32},         {"half", C::Dtype::kFp16},
      {"torch.float32", C::Dtype::kFp32}, {"torch.float16", C::Dtype::kFp16},
      {"torch.bfloat16", C::Dtype::kBf16}};
  return names;
}

const Names<C::GradientOp>& names_of(C::GradientOp) {
  static const Names<C::GradientOp> names = {{"mean", C::GradientOp::kMean}, {"sum", C::GradientOp::kSum}};
  return names;
}

const Names<C::OffloadDevice>& names_of(C::OffloadDevice) {
  static const Names<C::OffloadDevice> names = [] {
    Names<C::OffloadDevice> all;
    for (const auto device : {C::OffloadDevice::kNone, C::OffloadDevice::kCpu, C::OffloadDevice::kNvme}) {
      all.emplace_back(name_of(device), device);
    }
    return all;
  }();
  return names;
}

const Names<C::LogLevel>& names_of(C::LogLevel) {
  static const Names<C::LogLevel> names = {{"debug", C::LogLevel::kDebug},
                                           {"info", C::LogLevel::kInfo},
                                           {"warning", C::LogLevel::kWarning},
                                           {"error", C::LogLevel::kError}};
  return names;
}

const Names<C::Optimizer::LineSearch>& names_of(C::Optimizer::LineSearch) {
  static const Names<C::Optimizer::LineSearch> names = {
      {"strong_wolfe", C::Optimizer::LineSearch::kStrongWolfe}};
  return names;
}

const Names<C::Optimizer::Type>& names_of(C::Optimizer::Type) {
  using Type = C::Optimizer::Type;
  static const Names<Type> names = {
      {"Adam", Type::kAdam}, {"AdamW", Type::kAdamW}, {"Adagrad", Type::kAdagrad}, {"Lamb", Type::kLamb},
      {"Lion", Type::kLion}, {"SGD", Type::kSgd},     {"RMSprop", Type::kRmsprop}, {"LBFGS", Type::kLbfgs}};
  return names;
}

const Names<C::Scheduler::Type>& names_of(C::Scheduler::Type) {
  using Type = C::Scheduler::Type;
  static const Names<Type> names = {{"WarmupLR", Type::kWarmupLr},
                                    {"WarmupDecayLR", Type::kWarmupDecayLr},
                                    {"WarmupCosineLR", Type::kWarmupCosineLr},
                                    {"LRRangeTest", Type::kLrRangeTest},
                                    {"OneCycle", Type::kOneCycle}};
  return names;
}

const Names<C::Scheduler::Warmup>& names_of(C::Scheduler::Warmup) {
  using Warmup = C::Scheduler::Warmup;
  static const Names<Warmup> names = {{"log", Warmup::kLog}, {"linear", Warmup::kLinear}};
  return names;
}

const Names<C::Checkpoint::TagValidation>& names_of(C::Checkpoint::TagValidation) {
  using Tag = C::Checkpoint::TagValidation;
  static const Names<Tag> names = {{"Ignore", Tag::kIgnore}, {"Warn", Tag::kWarn}, {"Fail", Tag::kFail}};
  return names;
}

std::optional<std::string_view> operation_of(std::string_view name) {
  for (const auto& [known, operation] : kOperations) {
    if (known == name) return operation;
  }
  return std::nullopt;
}

std::vector<std::string> operation_names() {
  std::vector<std::string> names;
  for (const auto& [known, operation] : kOperations) names.emplace_back(known);
  return names;
}

}  // namespace lockstep::deepspeed
