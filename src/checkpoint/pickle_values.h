#pragma once

#include <lockstep/json.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/pickle.h"

namespace lockstep::checkpoint {

// Typed access to the values of a pickle. A PickleError names a value of another type; `what` is its
// name in the text.

// Null: the key is missing, or its value is None.
ValueRef find_member(const Dict& dict, std::string_view key);
ValueRef member(const Dict& dict, std::string_view key);

const Dict& dict_of(ValueRef value, std::string_view what);
const std::vector<ValueRef>& items_of(ValueRef value, std::string_view what);  // of a list or a tuple
const std::string& text_of(ValueRef value, std::string_view what);
// Text that can be the name of a tensor in a checkpoint: UTF-8, not empty and not too long.
const std::string& name_of(ValueRef value, std::string_view what);
void check_name(const std::string& name, std::string_view what);
const TensorReference& tensor_of(ValueRef value, std::string_view what);
int64_t integer_of(ValueRef value, std::string_view what);
std::vector<int64_t> shape_of(ValueRef value, std::string_view what);

// An integer, a number or a bool; nullopt: another value, or null.
std::optional<double> number_in(ValueRef value);

// The tensors of a dict in its order, each name once; the last value of a name counts, as in Python.
// Other values are skipped.
TensorReferences tensors_of(const Dict& dict, std::string_view what);

// Numbers, text, and lists and dicts of them as JSON; nullopt: there is another value in it, or too
// many.
std::optional<Json> plain_value(ValueRef value);

}  // namespace lockstep::checkpoint
