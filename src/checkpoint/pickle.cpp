#include "checkpoint/pickle.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <unordered_map>

#include "base/safetensors.h"
#include "checkpoint/dtype.h"

namespace lockstep::checkpoint {
namespace {

static_assert(std::endian::native == std::endian::little, "pickles and tensors are read as little-endian");

// --- names of Python ---

using Meaning = Global::Meaning;

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
    // In a training checkpoint besides the weights.
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

// Python writes shorter keys; longer ones would only cost memory.
constexpr size_t kMaxKeyBytes = 100;

int64_t integer(ValueRef value, std::string_view what) {
  const auto* number = value->as<int64_t>();
  if (number == nullptr || *number < 0) throw PickleError(fmt::format("{} is no count", what));
  return *number;
}

std::vector<int64_t> integers(ValueRef value, std::string_view what) {
  const auto* tuple = value->as<Tuple>();
  if (tuple == nullptr || tuple->items.size() > base::kMaxTensorDimensions) {
    throw PickleError(fmt::format("{} are no tuple of counts", what));
  }
  std::vector<int64_t> result;
  for (ValueRef item : tuple->items) result.push_back(integer(item, what));
  return result;
}

// A flag of {"conj": True, "neg": True}, which may be missing.
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

// nullopt: not a name that torch.save writes for a state dict.
std::optional<Global> find_global(std::string_view name) {
  for (const KnownCall& call : kCalls) {
    if (name == call.name) return Global{.meaning = call.meaning};
  }
  if (const auto dtype = python_dtype(name)) return Global{.meaning = Meaning::kType, .type = dtype};
  return std::nullopt;
}

// The result of Python's `global(*arguments)`. PickleError: the arguments do not fit. Not for
// kFirstArgument and kFromType, which make no new value.
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

// The storage of persistent_load(("storage", class, key, location, elements, ...)).
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

// --- the stack machine ---

// A state dict of a hundred thousand tensors has two million values.
constexpr size_t kMaxValues = size_t{8} << 20;
// Real names are shorter; longer ones would only cost memory.
constexpr size_t kMaxQuotedNameBytes = 200;

constexpr int kMaxFromTypeDepth = 8;

// The instructions of Python's pickle module that torch.save uses.
enum Opcode : unsigned char {
  kMark = '(',
  kStop = '.',
  kPop = '0',
  kPopMark = '1',
  kDup = '2',
  kBinaryInt = 'J',
  kBinaryInt1 = 'K',
  kBinaryInt2 = 'M',
  kNone = 'N',
  kPersistentId = 'Q',
  kReduce = 'R',
  kBinaryString = 'T',
  kShortBinaryString = 'U',
  kUnicode = 'X',
  kAppend = 'a',
  kBuild = 'b',
  kGlobal = 'c',
  kEmptyDict = '}',
  kAppends = 'e',
  kGet = 'h',
  kLongGet = 'j',
  kEmptyList = ']',
  kPut = 'q',
  kLongPut = 'r',
  kSetItem = 's',
  kTuple = 't',
  kEmptyTuple = ')',
  kSetItems = 'u',
  kBinaryFloat = 'G',
  kBytes = 'B',
  kShortBytes = 'C',
  kProtocol = 0x80,
  kNewObject = 0x81,
  kTuple1 = 0x85,
  kTuple2 = 0x86,
  kTuple3 = 0x87,
  kTrue = 0x88,
  kFalse = 0x89,
  kLong1 = 0x8a,
  kLong4 = 0x8b,
  kShortUnicode = 0x8c,
  kUnicode8 = 0x8d,
  kBytes8 = 0x8e,
  kEmptySet = 0x8f,
  kAddItems = 0x90,
  kFrozenSet = 0x91,
  kStackGlobal = 0x93,
  kMemoize = 0x94,
  kFrame = 0x95,
  kByteArray8 = 0x96,
};

class Machine {
 public:
  Machine(std::string_view bytes, UnknownNames unknown) : bytes_(bytes), unknown_(unknown) {}

  Pickle run() {
    while (step(static_cast<unsigned char>(read(1)[0]))) {
    }
    pickle_.root = pop();
    pickle_.bytes = position_;
    return std::move(pickle_);
  }

 private:
  [[noreturn]] void fail(std::string_view reason) const {
    throw PickleError(fmt::format("byte {} of its pickle: {}", position_, reason));
  }

  // -- bytes

  std::string_view read(uint64_t count) {
    if (count > bytes_.size() - position_) fail("it is cut off");
    const std::string_view result = bytes_.substr(position_, count);
    position_ += count;
    return result;
  }

  template <typename T>
  T read_number() {
    T number;
    std::memcpy(&number, read(sizeof(T)).data(), sizeof(T));
    return number;
  }

  std::string_view read_line() {
    const size_t end = bytes_.find('\n', position_);
    if (end == std::string_view::npos) fail("it is cut off");
    const std::string_view line = read(end - position_);
    read(1);
    return line;
  }

  // Little-endian two's complement of any length.
  void push_long(uint64_t length) {
    const std::string_view digits = read(length);
    if (length > sizeof(int64_t)) return push(Opaque{});
    const bool negative = length > 0 && (digits.back() & 0x80) != 0;
    int64_t number = negative ? -1 : 0;
    std::memcpy(&number, digits.data(), length);
    push(number);
  }

  void push_float() { push(std::bit_cast<double>(__builtin_bswap64(read_number<uint64_t>()))); }

  void push_text(uint64_t length) { push(std::string(read(length))); }

  void push_bytes(uint64_t length) {
    read(length);
    push(Opaque{});
  }

  // -- stack

  template <typename T>
  void push(T value) {
    if (pickle_.arena.size() >= kMaxValues) fail(fmt::format("it has more than {} values", kMaxValues));
    stack_.push_back(&pickle_.arena.emplace_back(PickleValue{std::move(value)}));
  }

  // Values below a mark belong to an unfinished container and cannot be popped.
  size_t available() const { return stack_.size() - (marks_.empty() ? 0 : marks_.back()); }

  PickleValue* top() {
    if (available() == 0) fail("its stack is empty");
    return stack_.back();
  }

  PickleValue* pop() {
    PickleValue* value = top();
    stack_.pop_back();
    return value;
  }

  std::vector<ValueRef> pop_last(size_t count) {
    if (available() < count) fail("its stack is too short");
    const std::vector<ValueRef> items(stack_.end() - static_cast<std::ptrdiff_t>(count), stack_.end());
    stack_.resize(stack_.size() - count);
    return items;
  }

  std::vector<ValueRef> pop_to_mark() {
    if (marks_.empty()) fail("a mark is missing");
    std::vector<ValueRef> items = pop_last(available());
    marks_.pop_back();
    return items;
  }

  // -- memo

  void put(uint64_t index) { memo_[index] = top(); }

  void get(uint64_t index) {
    const auto found = memo_.find(index);
    if (found == memo_.end()) fail(fmt::format("it refers to value {}, which it does not have", index));
    stack_.push_back(found->second);
  }

  // -- containers and calls

  void append(const std::vector<ValueRef>& items) {
    PickleValue* target = top();
    if (target->as<Opaque>() != nullptr) return;  // a set
    auto* list = std::get_if<List>(&target->value);
    if (list == nullptr) fail("it appends to what is no list");
    list->items.insert(list->items.end(), items.begin(), items.end());
  }

  void set_items(const std::vector<ValueRef>& items) {
    PickleValue* target = top();
    if (target->as<Opaque>() != nullptr) return;
    auto* dict = std::get_if<Dict>(&target->value);
    if (dict == nullptr) fail("it sets items of what is no dict");
    if (items.size() % 2 != 0) fail("it sets a key without a value");
    for (size_t i = 0; i < items.size(); i += 2) dict->items.emplace_back(items[i], items[i + 1]);
  }

  void push_global(std::string_view module, std::string_view name) {
    const std::string full = fmt::format("{}.{}", module, name);
    const std::optional<Global> global = find_global(full);
    if (!global && unknown_ == UnknownNames::kKeep) {
      return push(Global{.meaning = Global::Meaning::kOpaque, .name = full.substr(0, kMaxQuotedNameBytes)});
    }
    if (!global) {
      fail(fmt::format(
          "it holds an object that only its own Python code can read: '{}'. Save the weights alone: "
          "torch.save(model.state_dict(), \"weights.pt\")",
          full.substr(0, kMaxQuotedNameBytes)));
    }
    push(*global);
  }

  void push_stack_global() {
    const PickleValue* name = pop();
    const PickleValue* module = pop();
    if (name->as<std::string>() == nullptr || module->as<std::string>() == nullptr) fail("a name is no text");
    push_global(*module->as<std::string>(), *name->as<std::string>());
  }

  void call() {
    const PickleValue* arguments = pop();
    const PickleValue* function = pop();
    // _rebuild_from_type_v2(function, type, arguments, state) calls another function; files of PyTorch
    // nest it once. A hostile file could call a long chain again and again, which would take forever.
    for (int depth = 0;
         function->as<Global>() != nullptr && function->as<Global>()->meaning == Global::Meaning::kFromType;
         ++depth) {
      if (depth == kMaxFromTypeDepth) fail("it nests _rebuild_from_type_v2 too deep");
      const Tuple* inner = arguments->as<Tuple>();
      if (inner == nullptr || inner->items.size() < 3)
        fail("it calls _rebuild_from_type_v2 without arguments");
      function = inner->items[0];
      arguments = inner->items[2];
    }
    if (function->as<Opaque>() != nullptr && unknown_ == UnknownNames::kKeep) return push(Opaque{});
    const Global* global = function->as<Global>();
    const Tuple* tuple = arguments->as<Tuple>();
    if (global == nullptr || tuple == nullptr) fail("it calls what is no function");
    if (global->meaning == Global::Meaning::kFirstArgument) {
      if (tuple->items.empty()) fail("it makes a parameter of nothing");
      stack_.push_back(tuple->items[0]);
    } else {
      push(call_global(*global, tuple->items).value);
    }
  }

  void push_storage() {
    const PickleValue* id = pop();
    if (id->as<Tuple>() == nullptr) fail("a storage has no description");
    push(storage_reference(id->as<Tuple>()->items));
  }

  // Attributes, for example _metadata of a state dict. They hold no weights.
  void build() {
    PickleValue* state = pop();
    PickleValue* target = top();
    if (auto* object = std::get_if<Opaque>(&target->value)) {
      object->state = state;
    } else if (target->as<Dict>() == nullptr && target->as<TensorReference>() == nullptr) {
      fail("it sets attributes of what has none");
    }
  }

  void check_protocol() {
    const auto protocol = read_number<uint8_t>();
    if (protocol < 2 || protocol > 5)
      fail(fmt::format("it has pickle protocol {}, 2 to 5 are known", protocol));
  }

  // False after the last instruction.
  bool step(unsigned char opcode) { return step_data(opcode) || step_structure(opcode); }

  // False: not an instruction for data.
  bool step_data(unsigned char opcode) {
    switch (opcode) {
      case kNone: push(std::monostate{}); return true;
      case kTrue: push(true); return true;
      case kFalse: push(false); return true;
      case kBinaryInt: push(int64_t{read_number<int32_t>()}); return true;
      case kBinaryInt1: push(int64_t{read_number<uint8_t>()}); return true;
      case kBinaryInt2: push(int64_t{read_number<uint16_t>()}); return true;
      case kLong1: push_long(read_number<uint8_t>()); return true;
      case kLong4: push_long(read_number<uint32_t>()); return true;
      case kBinaryFloat: push_float(); return true;
      case kShortUnicode:
      case kShortBinaryString: push_text(read_number<uint8_t>()); return true;
      case kUnicode:
      case kBinaryString: push_text(read_number<uint32_t>()); return true;
      case kUnicode8: push_text(read_number<uint64_t>()); return true;
      case kShortBytes: push_bytes(read_number<uint8_t>()); return true;
      case kBytes: push_bytes(read_number<uint32_t>()); return true;
      case kBytes8:
      case kByteArray8: push_bytes(read_number<uint64_t>()); return true;
      case kEmptyTuple: push(Tuple{}); return true;
      case kEmptyList: push(List{}); return true;
      case kEmptyDict: push(Dict{}); return true;
      case kEmptySet: push(Opaque{}); return true;
      default: return false;
    }
  }

  // False after the last instruction.
  bool step_structure(unsigned char opcode) {
    switch (opcode) {
      case kStop: return false;
      case kProtocol: check_protocol(); break;
      case kFrame: read(sizeof(uint64_t)); break;
      case kMark: marks_.push_back(stack_.size()); break;
      case kPop: pop(); break;
      case kPopMark: pop_to_mark(); break;
      case kDup: stack_.push_back(top()); break;
      case kPut: put(read_number<uint8_t>()); break;
      case kLongPut: put(read_number<uint32_t>()); break;
      case kMemoize: put(memo_.size()); break;
      case kGet: get(read_number<uint8_t>()); break;
      case kLongGet: get(read_number<uint32_t>()); break;
      case kTuple: push(Tuple{pop_to_mark()}); break;
      case kTuple1: push(Tuple{pop_last(1)}); break;
      case kTuple2: push(Tuple{pop_last(2)}); break;
      case kTuple3: push(Tuple{pop_last(3)}); break;
      case kFrozenSet: pop_to_mark(), push(Opaque{}); break;
      case kAppend: append(pop_last(1)); break;
      case kAppends:
      case kAddItems: append(pop_to_mark()); break;
      case kSetItem: set_items(pop_last(2)); break;
      case kSetItems: set_items(pop_to_mark()); break;
      case kGlobal: {
        const std::string_view module = read_line();
        push_global(module, read_line());
        break;
      }
      case kStackGlobal: push_stack_global(); break;
      case kReduce:
      case kNewObject: call(); break;
      case kPersistentId: push_storage(); break;
      case kBuild: build(); break;
      default: fail(fmt::format("instruction {:#04x} is unknown", opcode));
    }
    return true;
  }

  std::string_view bytes_;
  UnknownNames unknown_;
  size_t position_ = 0;
  Pickle pickle_;
  std::vector<PickleValue*> stack_;
  std::vector<size_t> marks_;
  std::unordered_map<uint64_t, PickleValue*> memo_;
};

}  // namespace

Pickle parse_pickle(std::string_view bytes, UnknownNames unknown) { return Machine(bytes, unknown).run(); }

}  // namespace lockstep::checkpoint
