#pragma once

#include <lockstep/json.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <variant>

namespace lockstep::config {

// Values by names that the user chooses: --hyperparams lr=0.1 --hyperparams net=cnn.
using FreeValue = std::variant<bool, int64_t, double, std::string>;
using FreeValues = std::map<std::string, FreeValue>;

FreeValue free_value_of(const Json& value);
// "true", "3", "0.5" or any other text as what it looks like.
FreeValue parse_free_value(const std::string& text);

// A field of a struct, of one of the types that options have.
using Field =
    std::variant<std::string*, bool*, int*, int64_t*, uint64_t*, double*, std::optional<int>*,
                 std::optional<int64_t>*, std::optional<double>*, std::optional<std::string>*, FreeValues*>;

// One mechanism between fields and JSON. An optional without a value is null.
Json value_of(const Field& field);
// Throws std::invalid_argument with what the value should have been.
void assign_value(const Field& field, const Json& value);

}  // namespace lockstep::config
