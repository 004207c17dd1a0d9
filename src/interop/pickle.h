#pragma once

#include <stdexcept>
#include <string_view>

#include "interop/pickle_value.h"

namespace lockstep::interop {

// The bytes are no pickle of a state dict. Whoever knows the file's name makes a
// ConfigError of it: the text goes on after "cannot read 'weights.pt': ".
class PickleError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Reads one pickle of protocol 2 to 5, of those that Python's torch.save writes for
// tensors, numbers, text, and lists, tuples and dicts of them. Memory stays
// proportional to the bytes, whatever they say, and nothing is executed: a name of
// Python's that is not among the few known ones is a PickleError that names it.
Pickle parse_pickle(std::string_view bytes);

}  // namespace lockstep::interop
