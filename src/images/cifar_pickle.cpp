// checkpoint/pickle.h reads the pickles of torch.save. Its values have LibTorch's dtypes, which this
// layer does without; and it drops raw bytes, which here are the images.
#include "images/cifar_pickle.h"

#include <fmt/format.h>

#include <cstring>
#include <deque>
#include <unordered_map>
#include <utility>
#include <variant>

namespace lockstep::images {
namespace {

struct Value;
using Values = std::vector<const Value*>;

struct Text {
  std::string_view bytes;  // of a text or of raw bytes
};
struct List {
  Values items;
};
struct Tuple {
  Values items;
};
struct Dict {
  Values items;  // keys and values in turn
};
// A class, function or object of Python. An object has the arguments of its constructor, and the state
// that is set afterwards.
struct Object {
  std::string_view name = {};  // "numpy.core.multiarray._reconstruct"
  const Value* arguments = nullptr;
  const Value* state = nullptr;
};

struct Value {
  std::variant<std::monostate, int64_t, Text, List, Tuple, Dict, Object> value;

  template <typename T>
  const T* as() const {
    return std::get_if<T>(&value);
  }
};

// A batch of CIFAR has 150,000 values.
constexpr size_t kMaxValues = size_t{4} << 20;
// A list may refer to one text many times, and each name is copied.
constexpr size_t kMaxNameBytes = 200;

class Machine {
 public:
  explicit Machine(std::string_view bytes) : bytes_(bytes) {}

  const Value& run() {
    while (step(static_cast<uint8_t>(read(1)[0]))) {
    }
    return *pop();
  }

  [[noreturn]] void fail(const std::string& reason) const { throw CifarPickleError(position_, reason); }

 private:
  std::string_view read(uint64_t count) {
    if (count > bytes_.size() - position_) fail("the file ends within its data");
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
    if (end == std::string_view::npos) fail("the file ends within a line");
    const std::string_view line = read(end - position_);
    read(1);
    return line;
  }

  template <typename T>
  void push(T value) {
    if (arena_.size() >= kMaxValues) fail(fmt::format("it has more than {} values", kMaxValues));
    stack_.push_back(&arena_.emplace_back(Value{std::move(value)}));
  }

  // Values below a mark belong to an unfinished container.
  size_t available() const { return stack_.size() - (marks_.empty() ? 0 : marks_.back()); }

  Value* top() {
    if (available() == 0) fail("its stack is empty");
    return stack_.back();
  }

  Value* pop() {
    Value* value = top();
    stack_.pop_back();
    return value;
  }

  Values pop_last(size_t count) {
    if (available() < count) fail("its stack is too short");
    Values items(stack_.end() - static_cast<std::ptrdiff_t>(count), stack_.end());
    stack_.resize(stack_.size() - count);
    return items;
  }

  Values pop_to_mark() {
    if (marks_.empty()) fail("a mark is missing");
    Values items = pop_last(available());
    marks_.pop_back();
    return items;
  }

  template <typename Container>
  void extend(const Values& items) {
    auto* target = std::get_if<Container>(&top()->value);
    if (target == nullptr) fail("it adds items to another value than a list or a dict");
    target->items.insert(target->items.end(), items.begin(), items.end());
  }

  void set_items(const Values& items) {
    if (items.size() % 2 != 0) fail("a key has no value");
    extend<Dict>(items);
  }

  void put(uint64_t index) { memo_[index] = top(); }

  void get(uint64_t index) {
    const auto found = memo_.find(index);
    if (found == memo_.end()) fail(fmt::format("it refers to value {}, which it does not have", index));
    stack_.push_back(found->second);
  }

  void push_global(std::string_view module, std::string_view name) {
    names_.push_back(fmt::format("{}.{}", module, name));
    push(Object{.name = names_.back()});
  }

  void push_stack_global() {
    const Values names = pop_last(2);
    const Text* module = names[0]->as<Text>();
    const Text* name = names[1]->as<Text>();
    if (module == nullptr || name == nullptr) fail("the name of a class is no text");
    push_global(module->bytes, name->bytes);
  }

  void call() {
    const Values parts = pop_last(2);
    const Object* function = parts[0]->as<Object>();
    push(Object{.name = function != nullptr ? function->name : "", .arguments = parts[1]});
  }

  void build() {
    const Value* state = pop();
    auto* object = std::get_if<Object>(&top()->value);
    if (object == nullptr) fail("it sets the state of a value that has none");
    object->state = state;
  }

  // False after the last instruction.
  bool step(uint8_t opcode) {
    switch (opcode) {
      case '.': return false;
      case 0x80: read(1); break;  // protocol
      case 0x95: read(8); break;  // frame
      case '(': marks_.push_back(stack_.size()); break;
      case '0': pop(); break;
      case 'N': push(std::monostate{}); break;
      case 0x88:                                        // True
      case 0x89: push(int64_t{opcode == 0x88}); break;  // False
      case 'K': push(int64_t{read_number<uint8_t>()}); break;
      case 'M': push(int64_t{read_number<uint16_t>()}); break;
      case 'J': push(int64_t{read_number<int32_t>()}); break;
      case 'C':
      case 'U':
      case 0x8c: push(Text{read(read_number<uint8_t>())}); break;  // short bytes, texts
      case 'B':
      case 'T':
      case 'X': push(Text{read(read_number<uint32_t>())}); break;
      case 0x8d:
      case 0x8e:
      case 0x96: push(Text{read(read_number<uint64_t>())}); break;
      case ']': push(List{}); break;
      case '}': push(Dict{}); break;
      case ')': push(Tuple{}); break;
      case 't': push(Tuple{pop_to_mark()}); break;
      case 0x85:
      case 0x86:
      case 0x87: push(Tuple{pop_last(static_cast<size_t>(opcode - 0x84))}); break;
      case 'a': extend<List>(pop_last(1)); break;
      case 'e': extend<List>(pop_to_mark()); break;
      case 's': set_items(pop_last(2)); break;
      case 'u': set_items(pop_to_mark()); break;
      case 'q': put(read_number<uint8_t>()); break;
      case 'r': put(read_number<uint32_t>()); break;
      case 0x94: put(memo_.size()); break;
      case 'h': get(read_number<uint8_t>()); break;
      case 'j': get(read_number<uint32_t>()); break;
      case 'c': {
        const std::string_view module = read_line();
        push_global(module, read_line());
        break;
      }
      case 0x93: push_stack_global(); break;
      case 'R':
      case 0x81: call(); break;
      case 'b': build(); break;
      default: fail(fmt::format("the pickle instruction {:#04x} is not one of CIFAR's files", opcode));
    }
    return true;
  }

  std::string_view bytes_;
  size_t position_ = 0;
  std::deque<Value> arena_;
  std::deque<std::string> names_;
  std::vector<Value*> stack_;
  std::vector<size_t> marks_;
  std::unordered_map<uint64_t, Value*> memo_;
};

const Value* find(const Dict& dict, std::string_view key) {
  const Value* found = nullptr;
  for (size_t i = 0; i + 1 < dict.items.size(); i += 2) {
    const Text* text = dict.items[i]->as<Text>();
    if (text != nullptr && text->bytes == key) found = dict.items[i + 1];  // the last one counts
  }
  return found;
}

int64_t integer_at(const Values& items, size_t i) {
  const int64_t* value = i < items.size() ? items[i]->as<int64_t>() : nullptr;
  return value == nullptr ? -1 : *value;
}

// NumPy's array in the form (version, shape, dtype, Fortran order, bytes). False: another value.
bool read_array(const Value& value, CifarPickle& out) {
  const Object* array = value.as<Object>();
  const Tuple* state = array != nullptr && array->state != nullptr ? array->state->as<Tuple>() : nullptr;
  if (state == nullptr || state->items.size() != 5) return false;
  const Tuple* shape = state->items[1]->as<Tuple>();
  const Object* dtype = state->items[2]->as<Object>();
  const Text* bytes = state->items[4]->as<Text>();
  const Tuple* kind =
      dtype != nullptr && dtype->arguments != nullptr ? dtype->arguments->as<Tuple>() : nullptr;
  if (shape == nullptr || shape->items.size() != 2 || kind == nullptr || kind->items.empty() ||
      bytes == nullptr)
    return false;
  const Text* name = kind->items[0]->as<Text>();
  out.count = integer_at(shape->items, 0);
  out.row_bytes = integer_at(shape->items, 1);
  const bool is_bytes = name != nullptr && name->bytes == "u1" && integer_at(state->items, 3) == 0;
  const auto size = static_cast<int64_t>(bytes->bytes.size());
  if (!is_bytes || out.count < 1 || out.row_bytes < 1 || size % out.row_bytes != 0 ||
      size / out.row_bytes != out.count) {
    return false;
  }
  out.data = {reinterpret_cast<const uint8_t*>(bytes->bytes.data()), bytes->bytes.size()};
  return true;
}

}  // namespace

CifarPickle parse_cifar_pickle(std::span<const uint8_t> file, std::string_view labels_key,
                               std::string_view names_key) {
  Machine machine({reinterpret_cast<const char*>(file.data()), file.size()});
  const Value& root = machine.run();
  const Dict* dict = root.as<Dict>();
  if (dict == nullptr) machine.fail("it holds no dict");
  CifarPickle result;
  if (const Value* data = find(*dict, "data"); data != nullptr && !read_array(*data, result)) {
    machine.fail("its 'data' is no NumPy array of unsigned bytes with two dimensions, as CIFAR's files have");
  }
  if (const Value* labels = find(*dict, labels_key)) {
    const List* list = labels->as<List>();
    if (list == nullptr) machine.fail(fmt::format("its '{}' is no list", labels_key));
    for (size_t i = 0; i < list->items.size(); ++i) {
      const int64_t* label = list->items[i]->as<int64_t>();
      if (label == nullptr) machine.fail(fmt::format("item {} of '{}' is no integer", i, labels_key));
      result.labels.push_back(*label);
    }
  }
  if (const Value* names = find(*dict, names_key)) {
    const List* list = names->as<List>();
    if (list == nullptr) machine.fail(fmt::format("its '{}' is no list", names_key));
    for (size_t i = 0; i < list->items.size(); ++i) {
      const Text* name = list->items[i]->as<Text>();
      if (name == nullptr) machine.fail(fmt::format("item {} of '{}' is no text", i, names_key));
      if (name->bytes.size() > kMaxNameBytes)
        machine.fail(fmt::format("item {} of '{}' is too long", i, names_key));
      result.names.emplace_back(name->bytes);
    }
  }
  return result;
}

}  // namespace lockstep::images
