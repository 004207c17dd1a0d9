#pragma once

// JSON values: states, configurations and results as data. Json reads and prints JSON text, and
// converts from and to C++ types. Does not need LibTorch.
//
// Example:
//
//   lockstep::Json row = {{"step", 12}, {"loss", 0.25}, {"shape", {2, 3}}};
//   row["lr"] = 0.1;
//   const auto step = row.at("step").get<int64_t>();
//   const std::string text = row.dump();  // {"loss":0.25,"lr":0.1,"shape":[2,3],"step":12}
//   const lockstep::Json back = lockstep::Json::parse(text);
//
// More: docs/optim.md

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

// A value has another type than the requested one, a member is missing, or a text is not JSON. The
// message says which, and for a text where.
class JsonError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// A JSON value: null, boolean, number, string, array or object. Copies are deep. Threads may read one
// value at the same time.
//
// Braces make an object if every element is a pair whose first element is a string, and an array
// otherwise.
class Json {
 public:
  using Array = std::vector<Json>;
  using Members = std::map<std::string, Json, std::less<>>;

  enum class Order {
    kSorted,   // by name: equal values give equal texts
    kAsAdded,  // in the order in which the members were added
  };

  struct Print {
    int indent = -1;  // spaces for each level; -1: one line
    Order order = Order::kSorted;
    bool replace_invalid = false;  // strings that are not UTF-8: U+FFFD instead of a JsonError
  };

  struct ParseRules {
    size_t max_depth = 256;     // nesting of arrays and objects; more: a JsonError
    bool drop_deeper = false;   // drop deeper values instead of the error
    bool unique_names = false;  // two members of one name: a JsonError; false: the last one wins
  };

  // NOLINTBEGIN(google-explicit-constructor): values convert to JSON implicitly.
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
  // null if the optional is empty. Not for an optional Json: empty and null would be the same.
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
  // An array of the elements of any other range; an object if they are pairs whose first element is a
  // string. Not for a range whose elements have the type of the range (a path, another library's JSON):
  // the recursion would not end.
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

  // Needed for empty arrays and objects, and for an array whose elements are pairs.
  static Json array(std::initializer_list<Json> elements = {});
  static Json object(std::initializer_list<Json> members = {});

  // Exactly one JSON value. JsonError says what is wrong, and where.
  static Json parse(std::string_view text, const ParseRules& rules);
  static Json parse(std::string_view text) { return parse(text, ParseRules{}); }
  // The same; nullopt if the text is not JSON.
  static std::optional<Json> try_parse(std::string_view text, const ParseRules& rules);
  static std::optional<Json> try_parse(std::string_view text) { return try_parse(text, ParseRules{}); }

  // The value as JSON text. NaN and infinities become null. JsonError: a string is not UTF-8, unless
  // print.replace_invalid is set.
  std::string dump(int indent = -1) const { return dump(Print{.indent = indent}); }
  std::string dump(const Print& print) const;

  bool is_null() const { return std::holds_alternative<std::nullptr_t>(value_); }
  bool is_boolean() const { return std::holds_alternative<bool>(value_); }
  bool is_number_integer() const { return std::holds_alternative<int64_t>(value_) || is_number_unsigned(); }
  bool is_number_unsigned() const { return std::holds_alternative<uint64_t>(value_); }
  bool is_number_float() const { return std::holds_alternative<double>(value_); }
  bool is_number() const { return is_number_integer() || is_number_float(); }
  // Whether the value is an integer in the range of T.
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

  // The value as T: bool, a number, std::string, or a vector, set, tuple, pair or map of those. Numbers
  // are converted as static_cast does. JsonError: the value has another type, or T is an integer type
  // and the number without its fraction is out of range.
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
  // The string itself. The reference is valid until the value changes. JsonError: not a string.
  const std::string& text() const;

  // Objects. Members are found in logarithmic time. References to members stay valid while others are
  // added.
  bool contains(std::string_view name) const { return find(name) != nullptr; }
  const Json* find(std::string_view name) const;  // nullptr: not an object, or no such member
  Json* find(std::string_view name);
  // JsonError: not an object, or no such member.
  const Json& at(std::string_view name) const;
  Json& at(std::string_view name);
  const Json& at(const char* name) const { return at(std::string_view(name)); }
  Json& at(const char* name) { return at(std::string_view(name)); }
  // Adds a null if there is no such member; a null value becomes an object first. The const versions
  // are at().
  Json& operator[](std::string_view name);
  Json& operator[](const char* name) { return (*this)[std::string_view(name)]; }
  Json& operator[](const std::string& name) { return (*this)[std::string_view(name)]; }
  const Json& operator[](std::string_view name) const { return at(name); }
  const Json& operator[](const char* name) const { return at(name); }
  const Json& operator[](const std::string& name) const { return at(name); }
  // The member as the type of `otherwise`; `otherwise` if there is no such member.
  template <typename T>
  T value(std::string_view name, const T& otherwise) const {
    const Json* const member = find(name);
    return member == nullptr ? otherwise : member->get<T>();
  }
  std::string value(std::string_view name, const char* otherwise) const {
    return value(name, std::string(otherwise));
  }
  void erase(std::string_view name);
  // Adds the members of another object; members with the same name are replaced.
  void update(const Json& other);
  // All members, sorted by name; none for null.
  const Members& items() const;
  // The names of the members in the order in which they were added.
  std::vector<std::string> names() const;

  // Arrays. JsonError: not an array, or an index out of range.
  const Json& at(size_t index) const;
  Json& at(size_t index);
  const Json& at(int index) const { return at(static_cast<size_t>(index)); }
  Json& at(int index) { return at(static_cast<size_t>(index)); }
  const Json& operator[](size_t index) const { return at(index); }
  Json& operator[](size_t index) { return at(index); }
  const Json& operator[](int index) const { return at(index); }
  Json& operator[](int index) { return at(index); }
  void push_back(Json element);  // a null value becomes an array first
  const Json& front() const { return at(0); }
  Json& front() { return at(0); }
  const Json& back() const;
  Json& back();
  // The elements of an array; none for other types.
  Array::const_iterator begin() const;
  Array::const_iterator end() const;
  Array::iterator begin();
  Array::iterator end();

  size_t size() const;  // elements or members; 0: null; 1: other types
  bool empty() const { return size() == 0; }

  // Numbers are equal if their values are equal, independent of their types.
  friend bool operator==(const Json& a, const Json& b) { return equal(a, b); }

  // Prints dump().
  friend std::ostream& operator<<(std::ostream& out, const Json& value);

 private:
  struct Object;

  static bool equal(const Json& a, const Json& b);
  [[noreturn]] void fail_type(const char* wanted) const;
  const Array& elements() const;
  int64_t integer_bits() const;  // the value of an integer or a bool; JsonError for other types
  // The number, between `least` and `most`. JsonError: not a number, or out of this range.
  int64_t signed_integer(int64_t least, int64_t most) const;
  uint64_t unsigned_integer(uint64_t most) const;
  template <typename T>
  T integer_between(T least, T most) const;
  Object& make_object();

  // Only this value owns the object. It is a shared_ptr because Object is incomplete here.
  std::variant<std::nullptr_t, bool, int64_t, uint64_t, double, std::string, Array, std::shared_ptr<Object>>
      value_;
};

// A number that is saved and read back exactly. JSON has no NaN and no infinities; here they are the
// strings "nan", "inf" and "-inf".
Json exact_number(double value);
// JsonError: neither a number nor one of these strings.
double exact_number_of(const Json& value);

}  // namespace lockstep
