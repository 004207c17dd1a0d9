// The words of a configuration file for the values of the struct's enumerations.

#include "deepspeed/value.h"

namespace lockstep::deepspeed {

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
  static const Names<C::OffloadDevice> names = {
      {"none", C::OffloadDevice::kNone}, {"cpu", C::OffloadDevice::kCpu}, {"nvme", C::OffloadDevice::kNvme}};
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

}  // namespace lockstep::deepspeed
