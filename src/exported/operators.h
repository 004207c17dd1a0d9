#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <c10/util/ArrayRef.h>

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::exported {

// What is known about operators by their names in a program: "torch.ops.aten.linear.default".

// The name for LibTorch's dispatcher: "aten::linear" and "" for the overload "default". nullopt: the target
// is no operator of LibTorch (a function of Python, a higher-order operator).
struct OperatorName {
  std::string space;  // "aten"
  std::string name;   // "aten::linear"
  std::string overload;
};
std::optional<OperatorName> operator_name(std::string_view target);

// Why an operator is not executed although LibTorch has it: "it reads files". nullopt: it may be.
std::optional<std::string> refusal_of(const OperatorName& name);

// Loads a library that registers operators (TORCH_LIBRARY), for the life of the process: refusal_of() then
// lets these operators run. A second call for the same library does nothing. Thread-safe. ConfigError: it
// does not load, or it registers no operator.
void load_operator_library(const std::filesystem::path& library);

// Checks the arguments of a call that the operator does not check itself: sizes with which it would use
// memory outside of its tensors. Throws ProgramError. nullptr: there are none.
using ArgumentCheck = void (*)(c10::ArrayRef<c10::IValue> arguments);
ArgumentCheck argument_check(const OperatorName& name);

// Whether gradients pass through the operator: it has a formula of its own, or is a composition of others.
bool has_gradient(const c10::OperatorHandle& operation);

// A function of numbers, in Python's arithmetic, or of the shape of a tensor. nullptr: `target` is none.
using NumberFunction = c10::IValue (*)(const std::vector<c10::IValue>& arguments);
NumberFunction number_function(std::string_view target);

// Whether the operator only states what torch.export assumed about dtypes and devices. A model that was
// moved or converted does not fulfil it, and needs not.
bool is_assumption(std::string_view target);

// An argument that says whether the model is trained: batch norm's, dropout's. It has the value of the
// program in training.
struct EvaluationSwitch {
  std::string_view argument;
  c10::IValue value;  // in evaluation
};
std::optional<EvaluationSwitch> evaluation_switch(const OperatorName& name);

// Whether the operator is a batch norm that evaluates and cannot be switched to training.
bool only_evaluates(const OperatorName& name);

// Whether the results of the operator depend on random numbers in a way that evaluation_switch() does not
// turn off.
bool draws_always(const OperatorName& name);

}  // namespace lockstep::exported
