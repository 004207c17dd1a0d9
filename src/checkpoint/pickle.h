#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <deque>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace lockstep::checkpoint {

// Pickles are small compared with the tensors; a larger one is not a state dict.
inline constexpr size_t kMaxPickleBytes = size_t{256} << 20;

// The bytes are not the pickle of a state dict. The caller, which knows the file, makes a ConfigError
// of it: the text is what follows "cannot read 'weights.pt': ".
class PickleError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

struct PickleValue;
// Points into the arena of its Pickle. Not null unless stated.
using ValueRef = PickleValue*;

// A value that cannot hold weights: a set, an integer beyond 64 bits, a device, or an object of an
// unknown class.
struct Opaque {
  std::string name = {};     // of the class; empty: not an object
  ValueRef state = nullptr;  // the attributes; null: none
};

struct Tuple {
  std::vector<ValueRef> items;
};

struct List {
  std::vector<ValueRef> items;
};

// In the order of the file; a later equal key replaces an earlier one, as in Python.
struct Dict {
  std::vector<std::pair<ValueRef, ValueRef>> items;
};

// A function or class of Python. Nothing is ever executed: a call of it makes a value of this file.
struct Global {
  enum class Meaning {
    kOpaque,
    kOrderedDict,
    kTensorV1,
    kTensorV2,
    kTensorV3,
    kFirstArgument,
    kFromType,
    kType
  };
  Meaning meaning = Meaning::kOpaque;
  // kType: a dtype, or a storage class with elements of one. nullopt: untyped bytes.
  std::optional<at::ScalarType> type = {};
  std::string name = {};  // of an unknown one
};

// The memory of one or more tensors, stored outside the pickle.
struct StorageReference {
  std::string key;
  std::optional<at::ScalarType> type;  // nullopt: untyped bytes
  int64_t elements = 0;                // bytes if untyped
};

// A tensor as the file describes it, not yet checked against its storage.
struct TensorReference {
  StorageReference storage;
  at::ScalarType dtype = at::kFloat;
  int64_t offset = 0;  // in elements, like the strides
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;
  bool conjugate = false;
  bool negative = false;
};

using TensorReferences = std::vector<std::pair<std::string, const TensorReference*>>;

struct PickleValue {
  std::variant<std::monostate, bool, int64_t, double, std::string, Opaque, Tuple, List, Dict, Global,
               StorageReference, TensorReference>
      value;

  template <typename T>
  const T* as() const {
    return std::get_if<T>(&value);
  }
};

// A parsed pickle. Its arena owns all values, which may refer to each other in cycles.
struct Pickle {
  std::deque<PickleValue> arena;
  ValueRef root = nullptr;
  size_t bytes = 0;  // the length of the pickle; more may follow it
};

// What to do with a Python name that is not in the list of known ones.
enum class UnknownNames {
  kRefuse,  // throw a PickleError with the name
  kKeep,    // make it an Opaque with its name; the result of a call of it is one too
};

// Parses one pickle of protocol 2 to 5 as Python's torch.save writes it: tensors, numbers, text, and
// lists, tuples and dicts of them. Accepts any bytes: the memory stays proportional to them, and
// nothing is executed.
Pickle parse_pickle(std::string_view bytes, UnknownNames unknown = UnknownNames::kRefuse);

}  // namespace lockstep::checkpoint
