#pragma once

#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <iosfwd>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <ranges>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

namespace lockstep {

// A JSON value: saved states, configurations and results as data.
//
//   Json row = {{"step", 12}, {"loss", 0.25}, {"shape", {2, 3}}};
//   row["lr"] = 0.1;
//   int64_t step = row.at("step").get<int64_t>();
//   std::string text = row.dump();                    // {"loss":0.25,"lr":0.1,...}
//   Json back = Json::parse(text);
//
// Braces make an object when every element is a pair that begins with a text, an array
// otherwise. The type is a value: copies are deep. Threads may read one value at the same
// time.

// A value has another type than was asked for, a member is missing, or a text is not JSON.
class JsonError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class Json {
 public:
  using Array = std::vector<Json>;
  using Members = std::map<std::string, Json, std::less<>>;

  enum class Order {
    kSorted,   // by name: equal values have equal texts
    kAsAdded,  // as the members of each object were added
  };

  struct Print {
    int indent = -1;  // spaces a level; -1: one line
    Order order = Order::kSorted;
    bool replace_invalid = false;  // text that is not UTF-8: U+FFFD instead of a JsonError
  };

  struct ParseRules {
    size_t max_depth = 256;     // of arrays and objects in each other; more: a JsonError
    bool drop_deeper = false;   // leave out what is deeper, instead of the error
    bool unique_names = false;  // two members of one name: a JsonError; false: the last one counts
  };

  // NOLINTBEGIN(google-explicit-constructor): values become JSON without a word.
  Json(std::nullptr_t = nullptr) {}
  Json(bool value) : value_(value) {}
  Json(double value) : value_(value) {}
  Json(const char* text) : value_(std::string(text)) {}
  Json(std::string text) : value_(std::move(text)) {}
  Json(std::string_view text) : value_(std::string(text)) {}
  Json(std::initializer_list<Json> elements);
  template <typename T>
  requires(std::integral<T> && !std::same_as<T, bool>) Json(T value) {
    if constexpr (std::is_signed_v<T>) {
      value_ = static_cast<int64_t>(value);
    } else {
      value_ = static_cast<uint64_t>(value);
    }
  }
  Json(float value) : Json(static_cast<double>(value)) {}
  // null, where there is none. Not of an optional Json: whether there is one would be lost.
  template <typename T>
  requires(!std::same_as<T, Json>) Json(const std::optional<T>& value) {
    if (value) *this = Json(*value);
  }
  template <typename... T>
  Json(const std::tuple<T...>& elements)
      : Json(std::apply([](const T&... each) { return Array{Json(each)...}; }, elements)) {}
  template <typename First, typename Second>
  Json(const std::pair<First, Second>& pair) : Json(Array{Json(pair.first), Json(pair.second)}) {}
  Json(Array elements);
  // An array of the elements of any other range; an object, where they are pairs that begin
  // with a text. Not of a range whose elements are such ranges again, without end: a path, another
  // library's JSON.
  template <std::ranges::input_range Range>
  requires(!std::convertible_to<Range, std::string_view> && !std::same_as<std::decay_t<Range>, Json> &&
           !std::same_as<std::ranges::range_value_t<Range>, Range>) Json(const Range& range) {
    if constexpr (requires { typename Range::mapped_type; }) {
      *this = object();
      for (const auto& [name, element] : range) (*this)[name] = Json(element);
    } else {
      *this = array();
      for (const auto& element : range)
        push_back(Json(static_cast<std::ranges::range_value_t<Range>>(element)));
    }
  }
  // NOLINTEND(google-explicit-constructor)

  Json(const Json& other);
  Json(Json&& other) noexcept;
  Json& operator=(const Json& other);
  Json& operator=(Json&& other) noexcept;
  ~Json();

  static Json array(std::initializer_list<Json> elements = {});
  static Json object(std::initializer_list<Json> members = {});

  // One JSON value and nothing after it. JsonError says what is wrong, and where.
  static Json parse(std::string_view text, const ParseRules& rules);
  static Json parse(std::string_view text) { return parse(text, ParseRules{}); }
  // The same; nothing where the text is not JSON.
  static std::optional<Json> try_parse(std::string_view text, const ParseRules& rules);
  static std::optional<Json> try_parse(std::string_view text) { return try_parse(text, ParseRules{}); }

  std::string dump(int indent = -1) const { return dump(Print{.indent = indent}); }
  std::string dump(const Print& print) const;

  bool is_null() const { return std::holds_alternative<std::nullptr_t>(value_); }
  bool is_boolean() const { return std::holds_alternative<bool>(value_); }
  bool is_number_integer() const { return std::holds_alternative<int64_t>(value_) || is_number_unsigned(); }
  bool is_number_unsigned() const { return std::holds_alternative<uint64_t>(value_); }
  bool is_number_float() const { return std::holds_alternative<double>(value_); }
  bool is_number() const { return is_number_integer() || is_number_float(); }
  // Whether it is an integer in the range of T.
  template <std::integral T>
  bool is_integer_of() const {
    if (const auto* const number = std::get_if<int64_t>(&value_)) return std::in_range<T>(*number);
    const auto* const number = std::get_if<uint64_t>(&value_);
    return number != nullptr && std::in_range<T>(*number);
  }
  bool is_string() const { return std::holds_alternative<std::string>(value_); }
  bool is_array() const { return std::holds_alternative<Array>(value_); }
  bool is_object() const;
  // "null", "boolean", "number", "string", "array" or "object".
  const char* type_name() const;

  // The value as T: bool, a number, std::string, or a vector, set, tuple, pair or map of those.
  // A number is converted to the type that is asked for, as static_cast does; JsonError: it is an
  // integer type, and the number, without what is behind its point, is not in its range.
  template <typename T>
  T get() const {
    if constexpr (std::same_as<T, Json>) {
      return *this;
    } else {
      T value{};
      get_to(value);
      return value;
    }
  }
  void get_to(bool& value) const;
  void get_to(double& value) const;
  void get_to(std::string& value) const { value = text(); }
  template <typename T>
  requires(std::is_arithmetic_v<T>) void get_to(T& value) const {
    if constexpr (std::is_floating_point_v<T>) {
      value = static_cast<T>(get<double>());
    } else if constexpr (std::is_signed_v<T>) {
      value = static_cast<T>(signed_integer(std::numeric_limits<T>::min(), std::numeric_limits<T>::max()));
    } else {
      value = static_cast<T>(unsigned_integer(std::numeric_limits<T>::max()));
    }
  }
  template <typename T>
  void get_to(std::vector<T>& values) const {
    values.clear();
    for (const Json& element : elements()) values.push_back(element.get<T>());
  }
  template <typename T>
  void get_to(std::set<T>& values) const {
    values.clear();
    for (const Json& element : elements()) values.insert(element.get<T>());
  }
  template <typename First, typename Second>
  void get_to(std::pair<First, Second>& pair) const {
    at(0).get_to(pair.first);
    at(1).get_to(pair.second);
  }
  template <typename... T>
  void get_to(std::tuple<T...>& values) const {
    size_t i = 0;
    std::apply([&](T&... each) { (at(i++).get_to(each), ...); }, values);
  }
  template <typename T>
  void get_to(std::map<std::string, T>& values) const {
    values.clear();
    for (const auto& [name, member] : items()) values[name] = member.template get<T>();
  }
  // The text itself. It is valid until the value changes.
  const std::string& text() const;

  // Objects. Names are found in logarithmic time; references to members stay valid while
  // others are added.
  bool contains(std::string_view name) const { return find(name) != nullptr; }
  const Json* find(std::string_view name) const;  // null: no object, or no such member
  Json* find(std::string_view name);
  const Json& at(std::string_view name) const;
  Json& at(std::string_view name);
  const Json& at(const char* name) const { return at(std::string_view(name)); }
  Json& at(const char* name) { return at(std::string_view(name)); }
  // Adds a null where there is none; a null becomes an object.
  Json& operator[](std::string_view name);
  Json& operator[](const char* name) { return (*this)[std::string_view(name)]; }
  Json& operator[](const std::string& name) { return (*this)[std::string_view(name)]; }
  const Json& operator[](std::string_view name) const { return at(name); }
  const Json& operator[](const char* name) const { return at(name); }
  const Json& operator[](const std::string& name) const { return at(name); }
  // The member as the type of `otherwise`, or that where there is none.
  template <typename T>
  T value(std::string_view name, const T& otherwise) const {
    const Json* const member = find(name);
    return member == nullptr ? otherwise : member->get<T>();
  }
  std::string value(std::string_view name, const char* otherwise) const {
    return value(name, std::string(otherwise));
  }
  void erase(std::string_view name);
  // Adds the members of an object; those with the same name are replaced.
  void update(const Json& other);
  // All members, sorted by name; of null none.
  const Members& items() const;
  // Their names as they were added.
  std::vector<std::string> names() const;

  // Arrays.
  const Json& at(size_t index) const;
  Json& at(size_t index);
  const Json& at(int index) const { return at(static_cast<size_t>(index)); }
  Json& at(int index) { return at(static_cast<size_t>(index)); }
  const Json& operator[](size_t index) const { return at(index); }
  Json& operator[](size_t index) { return at(index); }
  const Json& operator[](int index) const { return at(index); }
  Json& operator[](int index) { return at(index); }
  void push_back(Json element);  // a null becomes an array
  const Json& front() const { return at(0); }
  Json& front() { return at(0); }
  const Json& back() const;
  Json& back();
  // The elements of an array; of anything else none.
  Array::const_iterator begin() const;
  Array::const_iterator end() const;
  Array::iterator begin();
  Array::iterator end();

  size_t size() const;  // elements or members; 0 for null, 1 for other values
  bool empty() const { return size() == 0; }

  // Numbers are equal when their values are, whatever their types.
  friend bool operator==(const Json& a, const Json& b) { return equal(a, b); }

  // As dump() prints it.
  friend std::ostream& operator<<(std::ostream& out, const Json& value);

 private:
  struct Object;

  static bool equal(const Json& a, const Json& b);
  [[noreturn]] void fail_type(const char* wanted) const;
  const Array& elements() const;
  int64_t integer_bits() const;  // of an integer or a bool; JsonError for others
  // The number from `least` to `most`. JsonError: it is none, or beyond them.
  int64_t signed_integer(int64_t least, int64_t most) const;
  uint64_t unsigned_integer(uint64_t most) const;
  template <typename T>
  T integer_between(T least, T most) const;
  Object& make_object();

  // The object is owned by this value alone; a shared_ptr, because Object is incomplete here.
  std::variant<std::nullptr_t, bool, int64_t, uint64_t, double, std::string, Array, std::shared_ptr<Object>>
      value_;
};

// A number that is saved and read back as it is: NaN and the infinities, which JSON lacks (dump()
// prints null), are the texts "nan", "inf" and "-inf".
Json exact_number(double value);
// JsonError: neither a number nor one of these texts.
double exact_number_of(const Json& value);

}  // namespace lockstep
