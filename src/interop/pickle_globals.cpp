#include "interop/pickle_globals.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string>

#include "interop/pickle.h"

namespace lockstep::interop {
namespace {

using Meaning = Global::Meaning;

struct KnownType {
  at::ScalarType type;
  std::string_view dtype;
  std::string_view storage;  // empty: saved as untyped bytes
};

constexpr KnownType kTypes[] = {
    {at::kFloat, "torch.float32", "torch.FloatStorage"},
    {at::kDouble, "torch.float64", "torch.DoubleStorage"},
    {at::kHalf, "torch.float16", "torch.HalfStorage"},
    {at::kBFloat16, "torch.bfloat16", "torch.BFloat16Storage"},
    {at::kLong, "torch.int64", "torch.LongStorage"},
    {at::kInt, "torch.int32", "torch.IntStorage"},
    {at::kShort, "torch.int16", "torch.ShortStorage"},
    {at::kChar, "torch.int8", "torch.CharStorage"},
    {at::kByte, "torch.uint8", "torch.ByteStorage"},
    {at::kBool, "torch.bool", "torch.BoolStorage"},
    {at::kComplexFloat, "torch.complex64", "torch.ComplexFloatStorage"},
    {at::kComplexDouble, "torch.complex128", "torch.ComplexDoubleStorage"},
    {at::kComplexHalf, "torch.complex32", ""},
    {at::kUInt16, "torch.uint16", ""},
    {at::kUInt32, "torch.uint32", ""},
    {at::kUInt64, "torch.uint64", ""},
    {at::kFloat8_e5m2, "torch.float8_e5m2", ""},
    {at::kFloat8_e4m3fn, "torch.float8_e4m3fn", ""},
    {at::kFloat8_e5m2fnuz, "torch.float8_e5m2fnuz", ""},
    {at::kFloat8_e4m3fnuz, "torch.float8_e4m3fnuz", ""},
    {at::kFloat8_e8m0fnu, "torch.float8_e8m0fnu", ""},
};

struct KnownCall {
  std::string_view name;
  Meaning meaning;
};

constexpr KnownCall kCalls[] = {
    {"collections.OrderedDict", Meaning::kOrderedDict},
    {"torch._utils._rebuild_tensor", Meaning::kTensorV1},
    {"torch._utils._rebuild_tensor_v2", Meaning::kTensorV2},
    {"torch._utils._rebuild_tensor_v3", Meaning::kTensorV3},
    {"torch._utils._rebuild_parameter", Meaning::kFirstArgument},
    {"torch._utils._rebuild_parameter_with_state", Meaning::kFirstArgument},
    {"torch.nn.parameter.Parameter", Meaning::kFirstArgument},
    {"torch._tensor._rebuild_from_type_v2", Meaning::kFromType},
    {"torch.Size", Meaning::kFirstArgument},
    {"deepspeed.runtime.zero.config.ZeroStageEnum", Meaning::kFirstArgument},
    {"torch.storage.UntypedStorage", Meaning::kType},
    // What a training checkpoint holds beside its weights.
    {"torch.Tensor", Meaning::kOpaque},
    {"torch.device", Meaning::kOpaque},
    {"_codecs.encode", Meaning::kOpaque},
    {"builtins.bytearray", Meaning::kOpaque},
    {"builtins.complex", Meaning::kOpaque},
    {"builtins.set", Meaning::kOpaque},
    {"builtins.frozenset", Meaning::kOpaque},
    {"__builtin__.bytearray", Meaning::kOpaque},
    {"__builtin__.complex", Meaning::kOpaque},
    {"__builtin__.set", Meaning::kOpaque},
    {"__builtin__.frozenset", Meaning::kOpaque},
};

// Longer ones than Python writes would only be copied around.
constexpr size_t kMaxKeyBytes = 100;
constexpr size_t kMaxDimensions = 64;

int64_t integer(ValueRef value, std::string_view what) {
  const auto* number = value->as<int64_t>();
  if (number == nullptr || *number < 0) throw PickleError(fmt::format("{} is no count", what));
  return *number;
}

std::vector<int64_t> integers(ValueRef value, std::string_view what) {
  const auto* tuple = value->as<Tuple>();
  if (tuple == nullptr || tuple->items.size() > kMaxDimensions) {
    throw PickleError(fmt::format("{} are no tuple of counts", what));
  }
  std::vector<int64_t> result;
  for (ValueRef item : tuple->items) result.push_back(integer(item, what));
  return result;
}

// {"conj": True, "neg": True}, or nothing.
bool flag(const std::vector<ValueRef>& arguments, size_t index, std::string_view name) {
  const Dict* metadata = index < arguments.size() ? arguments[index]->as<Dict>() : nullptr;
  if (metadata == nullptr) return false;
  return std::any_of(metadata->items.begin(), metadata->items.end(), [&](const auto& item) {
    const auto* key = item.first->template as<std::string>();
    const auto* value = item.second->template as<bool>();
    return key != nullptr && *key == name && value != nullptr && *value;
  });
}

// (storage, offset, size, stride), v2: requires_grad, hooks, metadata; v3: a dtype
// before the metadata, since its storage is untyped.
TensorReference tensor(const std::vector<ValueRef>& arguments, Meaning meaning) {
  const size_t needed = meaning == Meaning::kTensorV1 ? 4 : meaning == Meaning::kTensorV2 ? 6 : 7;
  if (arguments.size() < needed) throw PickleError("a tensor is not described in full");
  const auto* storage = arguments[0]->as<StorageReference>();
  if (storage == nullptr) throw PickleError("a tensor has no storage");
  TensorReference result;
  result.storage = *storage;
  result.offset = integer(arguments[1], "a tensor's offset");
  result.sizes = integers(arguments[2], "a tensor's sizes");
  result.strides = integers(arguments[3], "a tensor's strides");
  if (result.sizes.size() != result.strides.size())
    throw PickleError("a tensor's sizes and strides differ in number");
  std::optional<at::ScalarType> type = storage->type;
  if (meaning == Meaning::kTensorV3) {
    const auto* dtype = arguments[6]->as<Global>();
    type = dtype != nullptr && dtype->meaning == Meaning::kType ? dtype->type : std::nullopt;
  }
  if (!type) throw PickleError("a tensor has no dtype");
  result.dtype = *type;
  if (meaning != Meaning::kTensorV1) {
    result.conjugate = flag(arguments, needed, "conj");
    result.negative = flag(arguments, needed, "neg");
  }
  return result;
}

}  // namespace

std::optional<Global> find_global(std::string_view name) {
  for (const KnownCall& call : kCalls) {
    if (name == call.name) return Global{.meaning = call.meaning};
  }
  constexpr std::string_view kCuda = "torch.cuda.";
  for (const KnownType& known : kTypes) {
    const bool is_storage = !known.storage.empty() &&
                            (name == known.storage || (name.starts_with(kCuda) &&
                                                       name.substr(kCuda.size()) == known.storage.substr(6)));
    if (is_storage || name == known.dtype) return Global{.meaning = Meaning::kType, .type = known.type};
  }
  return std::nullopt;
}

std::string_view dtype_name(at::ScalarType type) {
  for (const KnownType& known : kTypes) {
    if (known.type == type) return known.dtype;
  }
  throw PickleError(fmt::format("no dtype of a state dict: {}", c10::toString(type)));
}

std::optional<std::string_view> storage_class(at::ScalarType type) {
  for (const KnownType& known : kTypes) {
    if (known.type == type && !known.storage.empty()) return known.storage;
  }
  return std::nullopt;
}

PickleValue call_global(const Global& global, const std::vector<ValueRef>& arguments) {
  switch (global.meaning) {
    case Meaning::kOrderedDict:
      if (!arguments.empty()) throw PickleError("an OrderedDict is made from a list");
      return {Dict{}};
    case Meaning::kTensorV1:
    case Meaning::kTensorV2:
    case Meaning::kTensorV3: return {tensor(arguments, global.meaning)};
    case Meaning::kOpaque: return {Opaque{.name = global.name}};
    default: throw PickleError("it calls what is no function");
  }
}

StorageReference storage_reference(const std::vector<ValueRef>& id) {
  if (id.size() < 5) throw PickleError("a storage is not described in full");
  const auto* kind = id[0]->as<std::string>();
  const auto* type = id[1]->as<Global>();
  const auto* key = id[2]->as<std::string>();
  if (kind == nullptr || *kind != "storage") throw PickleError("it refers to something else than a storage");
  if (type == nullptr || type->meaning != Meaning::kType) throw PickleError("a storage has no known class");
  if (key == nullptr || key->empty() || key->size() > kMaxKeyBytes) throw PickleError("a storage has no key");
  return {*key, type->type, integer(id[4], "a storage's length")};
}

}  // namespace lockstep::interop
