#pragma once

#include <stdexcept>
#include <string_view>

#include "interop/pickle_value.h"

namespace lockstep::interop {

// Archives of torch.save are zip files that begin with this.
inline constexpr std::string_view kZipMagic = "PK";
// Pickles are small beside the tensors; a larger one is no state dict.
inline constexpr size_t kMaxPickleBytes = size_t{256} << 20;

// The bytes are no pickle of a state dict. Whoever knows the file's name makes a
// ConfigError of it: the text goes on after "cannot read 'weights.pt': ".
class PickleError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// What becomes of a name of Python's that is not among the few known ones.
enum class UnknownNames {
  kRefuse,  // a PickleError that names it
  kKeep,    // an Opaque with its name, and whatever it is called with is one too
};

// Reads one pickle of protocol 2 to 5, of those that Python's torch.save writes for
// tensors, numbers, text, and lists, tuples and dicts of them. Memory stays
// proportional to the bytes, whatever they say, and nothing is executed.
Pickle parse_pickle(std::string_view bytes, UnknownNames unknown = UnknownNames::kRefuse);

}  // namespace lockstep::interop
