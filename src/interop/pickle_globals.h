#pragma once

#include <optional>
#include <string_view>

#include "interop/pickle_value.h"

namespace lockstep::interop {

// The names that torch.save writes for a state dict, "torch._utils._rebuild_tensor_v2"
// for example; nullopt: not among them.
std::optional<Global> find_global(std::string_view name);

// The name under which Python knows a dtype ("torch.float32") and, where there is one,
// the storage class of its elements ("torch.FloatStorage").
std::string_view dtype_name(at::ScalarType type);
std::optional<std::string_view> storage_class(at::ScalarType type);

// What Python's `global(*arguments)` makes. PickleError: the arguments do not fit.
// Not for kFirstArgument and kFromType, which make nothing new.
PickleValue call_global(const Global& global, const std::vector<ValueRef>& arguments);

// What persistent_load(("storage", class, key, location, elements, ...)) is.
StorageReference storage_reference(const std::vector<ValueRef>& id);

}  // namespace lockstep::interop
