#pragma once

#include <lockstep/json.h>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "interop/pickle.h"
#include "interop/pickle_value.h"

namespace lockstep::interop {

// Values of a pickle by the types that they must have; a PickleError names what has
// another one.

// Null: the key is not there, or is None.
ValueRef find_member(const Dict& dict, std::string_view key);
ValueRef member(const Dict& dict, std::string_view key);

const Dict& dict_of(ValueRef value, std::string_view what);
const std::vector<ValueRef>& items_of(ValueRef value, std::string_view what);  // of a list or a tuple
const std::string& text_of(ValueRef value, std::string_view what);
// Text that a checkpoint can have as a name: UTF-8, not empty and not endless.
const std::string& name_of(ValueRef value, std::string_view what);
const TensorReference& tensor_of(ValueRef value, std::string_view what);
int64_t integer_of(ValueRef value, std::string_view what);
std::vector<int64_t> shape_of(ValueRef value, std::string_view what);

// An integer, a number or a truth value; nullopt: something else.
std::optional<double> number_in(ValueRef value);

// Numbers, text, and lists and dicts of them; nullopt where anything else is in it, or too
// much.
std::optional<Json> plain_value(ValueRef value);

}  // namespace lockstep::interop
