#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace lockstep::interop {

struct PickleValue;
// Points into the arena of the Pickle that it belongs to; never null.
using ValueRef = PickleValue*;

// Something that cannot hold weights: a set, an integer beyond 64 bits, a device, or an
// object of a class that is not known here.
struct Opaque {
  std::string name = {};     // of its class; empty: no object
  ValueRef state = nullptr;  // its attributes, where it has any
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

// What a name of Python's stands for. Nothing is ever executed: a call makes one of
// the values of this file.
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
  std::string name = {};  // of what is not known
};

// The memory of one or more tensors, kept outside the pickle.
struct StorageReference {
  std::string key;
  std::optional<at::ScalarType> type;  // nullopt: untyped bytes
  int64_t elements = 0;                // bytes where untyped
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

struct PickleValue {
  std::variant<std::monostate, bool, int64_t, double, std::string, Opaque, Tuple, List, Dict, Global,
               StorageReference, TensorReference>
      value;

  template <typename T>
  const T* as() const {
    return std::get_if<T>(&value);
  }
};

// One parsed pickle. Values may refer to each other in cycles; the arena owns them all.
struct Pickle {
  std::deque<PickleValue> arena;
  ValueRef root = nullptr;
  size_t bytes = 0;  // length of the pickle; more may follow it
};

}  // namespace lockstep::interop
