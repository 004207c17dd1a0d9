#include "base/json.h"

#include <fmt/format.h>
#include <lockstep/error.h>
#include <lockstep/json.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <limits>
#include <ostream>

namespace lockstep {
namespace {

// Builds a Json from the events of nlohmann's parser.
class Builder : public nlohmann::json_sax<nlohmann::json> {
 public:
  Builder(Json& root, const Json::ParseRules& rules) : root_(root), rules_(rules) {}

  bool null() override { return add(nullptr); }
  bool boolean(bool value) override { return add(value); }
  bool number_integer(number_integer_t value) override { return add(value); }
  bool number_unsigned(number_unsigned_t value) override { return add(value); }
  bool number_float(number_float_t value, const string_t&) override { return add(value); }
  bool string(string_t& value) override { return add(std::move(value)); }
  bool binary(binary_t&) override { return false; }
  bool start_object(size_t) override { return open(Json::object()); }
  bool start_array(size_t) override { return open(Json::array()); }
  bool key(string_t& name) override {
    name_ = std::move(name);
    if (!rules_.unique_names || levels_dropped_ > 0 || !open_.back()->contains(name_)) return true;
    error_ = "duplicate name: " + name_;
    return false;
  }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool parse_error(size_t, const std::string&, const nlohmann::detail::exception& error) override {
    error_ = error.what();
    return false;
  }

  const std::string& error() const { return error_; }

 private:
  Json& place(Json value) {
    if (open_.empty()) return root_ = std::move(value);
    Json& parent = *open_.back();
    if (parent.is_object()) return parent[name_] = std::move(value);
    parent.push_back(std::move(value));
    return parent.back();
  }

  bool add(Json value) {
    if (levels_dropped_ == 0) place(std::move(value));
    return true;
  }

  bool open(Json value) {
    if (rules_.drop_deeper && open_.size() >= rules_.max_depth) {
      ++levels_dropped_;
      return true;
    }
    if (open_.size() >= rules_.max_depth) {
      error_ = "nested more than " + std::to_string(rules_.max_depth) + " deep";
      return false;
    }
    open_.push_back(&place(std::move(value)));
    return true;
  }

  bool close() {
    if (levels_dropped_ > 0) {
      --levels_dropped_;
    } else {
      open_.pop_back();
    }
    return true;
  }

  Json& root_;
  const Json::ParseRules& rules_;
  std::vector<Json*> open_;    // the arrays and objects around the next value, from the root
  size_t levels_dropped_ = 0;  // open levels below the deepest one that is kept
  std::string name_;
  std::string error_;
};

// Returns the error; empty: the text is valid.
std::string parse_into(Json& value, std::string_view text, const Json::ParseRules& rules) {
  Builder builder(value, rules);
  return nlohmann::json::sax_parse(text, &builder) ? "" : builder.error();
}

}  // namespace

struct Json::Object {
  Members members;
  std::vector<Members::iterator> added;  // in the order in which they were added

  Object() = default;
  Object(const Object& other) {
    for (const Members::iterator& member : other.added) add(member->first) = member->second;
  }

  Json& add(std::string_view name) {
    const auto found = members.lower_bound(name);
    if (found != members.end() && found->first == name) return found->second;
    added.push_back(members.emplace_hint(found, std::string(name), nullptr));
    return added.back()->second;
  }

  void erase(std::string_view name) {
    const auto found = members.find(name);
    if (found == members.end()) return;
    added.erase(std::find(added.begin(), added.end(), found));
    members.erase(found);
  }

  // As nlohmann's value, whose members keep this order.
  template <typename Convert>
  nlohmann::ordered_json printed(Order order, const Convert& convert) const {
    nlohmann::ordered_json result = nlohmann::ordered_json::object();
    auto& pairs = result.get_ref<nlohmann::ordered_json::object_t&>();
    pairs.reserve(members.size());
    // Not by result[name], which searches all earlier names.
    if (order == Order::kSorted) {
      for (const auto& [name, member] : members) pairs.emplace_back(name, convert(member));
    } else {
      for (const Members::iterator& member : added)
        pairs.emplace_back(member->first, convert(member->second));
    }
    return result;
  }
};

Json::Json(const Json& other) { *this = other; }
Json::Json(Json&& other) noexcept : value_(std::move(other.value_)) { other.value_ = nullptr; }

Json& Json::operator=(const Json& other) {
  if (this == &other) return *this;
  std::visit(
      [this](const auto& held) {
        if constexpr (std::is_same_v<std::decay_t<decltype(held)>, std::shared_ptr<Object>>) {
          value_ = std::make_shared<Object>(*held);
        } else {
          auto copy = held;  // `other` may be a part of this value
          value_ = std::move(copy);
        }
      },
      other.value_);
  return *this;
}

Json& Json::operator=(Json&& other) noexcept {
  if (this == &other) return *this;
  auto taken = std::move(other.value_);  // `other` may be a part of this value
  other.value_ = nullptr;
  value_ = std::move(taken);
  return *this;
}

Json::~Json() = default;

Json::Json(Array elements) : value_(std::move(elements)) {}

Json::Json(std::initializer_list<Json> elements) {
  const auto is_member = [](const Json& element) {
    return element.is_array() && element.size() == 2 && element.at(0).is_string();
  };
  *this = std::all_of(elements.begin(), elements.end(), is_member) ? object(elements) : array(elements);
}

Json Json::array(std::initializer_list<Json> elements) { return Array(elements); }

Json Json::object(std::initializer_list<Json> members) {
  Json result;
  Object& object = result.make_object();
  for (const Json& member : members) object.add(member.at(0).text()) = member.at(1);
  return result;
}

Json Json::parse(std::string_view text, const ParseRules& rules) {
  Json result;
  const std::string error = parse_into(result, text, rules);
  if (!error.empty()) throw JsonError(error);
  return result;
}

std::optional<Json> Json::try_parse(std::string_view text, const ParseRules& rules) {
  Json result;
  if (!parse_into(result, text, rules).empty()) return std::nullopt;
  return result;
}

std::string Json::dump(const Print& print) const {
  const auto convert = [&](const auto& self, const Json& json) -> nlohmann::ordered_json {
    const auto convert_each = [&](const Json& each) { return self(self, each); };
    if (const auto* const object = std::get_if<std::shared_ptr<Object>>(&json.value_)) {
      return (*object)->printed(print.order, convert_each);
    }
    if (const auto* const array = std::get_if<Array>(&json.value_)) {
      nlohmann::ordered_json result = nlohmann::ordered_json::array();
      for (const Json& element : *array) result.push_back(convert_each(element));
      return result;
    }
    return std::visit(
        [](const auto& held) -> nlohmann::ordered_json {
          if constexpr (std::is_constructible_v<nlohmann::ordered_json, decltype(held)> &&
                        !std::is_same_v<std::decay_t<decltype(held)>, Array>) {
            return held;
          } else {
            return nullptr;
          }
        },
        json.value_);
  };
  using Handler = nlohmann::ordered_json::error_handler_t;
  try {
    return convert(convert, *this)
        .dump(print.indent, ' ', false, print.replace_invalid ? Handler::replace : Handler::strict);
  } catch (const nlohmann::ordered_json::exception& error) {
    throw JsonError(error.what());
  }
}

bool Json::is_object() const { return std::holds_alternative<std::shared_ptr<Object>>(value_); }

const char* Json::type_name() const {
  if (is_null()) return "null";
  if (is_boolean()) return "boolean";
  if (is_number()) return "number";
  if (is_string()) return "string";
  return is_array() ? "array" : "object";
}

void Json::fail_type(const char* wanted) const {
  throw JsonError(std::string("the value must be ") + wanted + ", not " + type_name());
}

void Json::get_to(bool& value) const {
  const auto* const held = std::get_if<bool>(&value_);
  if (held == nullptr) fail_type("a boolean");
  value = *held;
}

void Json::get_to(double& value) const {
  if (const auto* const number = std::get_if<double>(&value_)) {
    value = *number;
  } else if (const auto* const unsigned_number = std::get_if<uint64_t>(&value_)) {
    value = static_cast<double>(*unsigned_number);
  } else {
    value = static_cast<double>(integer_bits());
  }
}

int64_t Json::integer_bits() const {
  if (const auto* const number = std::get_if<int64_t>(&value_)) return *number;
  if (const auto* const number = std::get_if<uint64_t>(&value_)) return static_cast<int64_t>(*number);
  if (const auto* const flag = std::get_if<bool>(&value_)) return *flag ? 1 : 0;
  fail_type("a number");
}

template <typename T>
T Json::integer_between(T least, T most) const {
  if (const auto* const number = std::get_if<double>(&value_)) {
    // Beyond the largest T; a power of two, which a double holds exactly. NaN is within nothing.
    const double end = std::ldexp(1.0, std::numeric_limits<T>::digits);
    const double whole = std::trunc(*number);
    if (whole >= (std::is_signed_v<T> ? -end : 0) && whole < end) {
      const auto result = static_cast<T>(whole);
      if (result >= least && result <= most) return result;
    }
  } else if (const auto* const large = std::get_if<uint64_t>(&value_)) {
    if (std::cmp_less_equal(*large, most)) return static_cast<T>(*large);
  } else {
    const int64_t integer = integer_bits();
    if (std::cmp_greater_equal(integer, least) && std::cmp_less_equal(integer, most)) {
      return static_cast<T>(integer);
    }
  }
  const bool is_finite = !is_number_float() || std::isfinite(get<double>());
  throw JsonError("the number must be from " + std::to_string(least) + " to " + std::to_string(most) +
                  ", not " + (is_finite ? dump() : exact_number(get<double>()).text()));
}

int64_t Json::signed_integer(int64_t least, int64_t most) const { return integer_between(least, most); }

uint64_t Json::unsigned_integer(uint64_t most) const { return integer_between(uint64_t{0}, most); }

const std::string& Json::text() const {
  const auto* const held = std::get_if<std::string>(&value_);
  if (held == nullptr) fail_type("a string");
  return *held;
}

const Json* Json::find(std::string_view name) const {
  const auto* const object = std::get_if<std::shared_ptr<Object>>(&value_);
  if (object == nullptr) return nullptr;
  const auto found = (*object)->members.find(name);
  return found == (*object)->members.end() ? nullptr : &found->second;
}

Json* Json::find(std::string_view name) { return const_cast<Json*>(std::as_const(*this).find(name)); }

const Json& Json::at(std::string_view name) const {
  if (!is_object()) fail_type("an object");
  const Json* const member = find(name);
  if (member == nullptr) throw JsonError("no member '" + std::string(name) + "'");
  return *member;
}

Json& Json::at(std::string_view name) { return const_cast<Json&>(std::as_const(*this).at(name)); }

Json::Object& Json::make_object() {
  if (is_null()) value_ = std::make_shared<Object>();
  auto* const object = std::get_if<std::shared_ptr<Object>>(&value_);
  if (object == nullptr) fail_type("an object");
  return **object;
}

Json& Json::operator[](std::string_view name) { return make_object().add(name); }

void Json::erase(std::string_view name) { make_object().erase(name); }

void Json::update(const Json& other) {
  if (!other.is_object()) other.fail_type("an object");
  Object& object = make_object();
  for (const auto& member : std::get<std::shared_ptr<Object>>(other.value_)->added) {
    object.add(member->first) = member->second;
  }
}

const Json::Members& Json::items() const {
  static const Members kNone;
  if (is_null()) return kNone;
  if (!is_object()) fail_type("an object");
  return std::get<std::shared_ptr<Object>>(value_)->members;
}

std::vector<std::string> Json::names() const {
  std::vector<std::string> names;
  if (!is_object()) fail_type("an object");
  for (const auto& member : std::get<std::shared_ptr<Object>>(value_)->added) names.push_back(member->first);
  return names;
}

const Json::Array& Json::elements() const {
  const auto* const array = std::get_if<Array>(&value_);
  if (array == nullptr) fail_type("an array");
  return *array;
}

const Json& Json::at(size_t index) const {
  if (index >= elements().size()) {
    throw JsonError("no element " + std::to_string(index) + " in an array of " + std::to_string(size()));
  }
  return elements()[index];
}

Json& Json::at(size_t index) { return const_cast<Json&>(std::as_const(*this).at(index)); }

void Json::push_back(Json element) {
  if (is_null()) value_ = Array();
  auto* const array = std::get_if<Array>(&value_);
  if (array == nullptr) fail_type("an array");
  array->push_back(std::move(element));
}

const Json& Json::back() const { return at(elements().size() - 1); }
Json& Json::back() { return at(elements().size() - 1); }

Json::Array::const_iterator Json::begin() const {
  const auto* const array = std::get_if<Array>(&value_);
  return array == nullptr ? Array::const_iterator() : array->begin();
}

Json::Array::const_iterator Json::end() const {
  const auto* const array = std::get_if<Array>(&value_);
  return array == nullptr ? Array::const_iterator() : array->end();
}

Json::Array::iterator Json::begin() {
  auto* const array = std::get_if<Array>(&value_);
  return array == nullptr ? Array::iterator() : array->begin();
}

Json::Array::iterator Json::end() {
  auto* const array = std::get_if<Array>(&value_);
  return array == nullptr ? Array::iterator() : array->end();
}

size_t Json::size() const {
  if (is_null()) return 0;
  if (const auto* const array = std::get_if<Array>(&value_)) return array->size();
  return is_object() ? items().size() : 1;
}

bool Json::equal(const Json& a, const Json& b) {
  if (a.is_number() && b.is_number()) {
    if (a.is_number_float() || b.is_number_float()) return a.get<double>() == b.get<double>();
    // Compare as bits, but a large unsigned number has the bits of a negative one.
    const auto is_large = [](const Json& n) {
      return n.is_number_unsigned() && n.get<uint64_t>() > INT64_MAX;
    };
    return is_large(a) == is_large(b) && a.integer_bits() == b.integer_bits();
  }
  if (a.is_object() && b.is_object()) return a.items() == b.items();
  return !a.is_object() && a.value_.index() == b.value_.index() &&
         std::visit(
             [&b](const auto& held) {
               using Held = std::decay_t<decltype(held)>;
               if constexpr (std::is_same_v<Held, std::shared_ptr<Object>>) {
                 return false;
               } else {
                 return held == std::get<Held>(b.value_);
               }
             },
             a.value_);
}

std::ostream& operator<<(std::ostream& out, const Json& value) {
  return out << value.dump(Json::Print{.replace_invalid = true});
}

Json exact_number(double value) {
  if (std::isfinite(value)) return value;
  return std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf";
}

double exact_number_of(const Json& value) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  // Checkpoints written through fmt have "-nan".
  if (value == "nan" || value == "-nan") return std::numeric_limits<double>::quiet_NaN();
  if (value == "inf") return kInfinity;
  if (value == "-inf") return -kInfinity;
  return value.get<double>();
}

}  // namespace lockstep

namespace lockstep::base {
namespace {

constexpr size_t kMaxDepth = 64;
constexpr size_t kMaxQuotedBytes = 200;

// Makes a name of a hostile file safe for a message: short, and without control characters.
std::string quoted(std::string_view text) {
  std::string result(text.substr(0, kMaxQuotedBytes));
  for (char& c : result) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
  }
  return result;
}

[[noreturn]] void fail_file(const FileFault& fault, const std::filesystem::path& path,
                            std::string_view reason) {
  fault(path, quoted(reason));
  throw InternalError("internal", "a FileFault returned");
}

}  // namespace

Json parse_json(std::string_view text, const std::filesystem::path& path, const FileFault& fault) {
  try {
    return Json::parse(text, {.max_depth = kMaxDepth, .unique_names = true});
  } catch (const JsonError& error) {
    fail_file(fault, path, fmt::format("no JSON: {}", error.what()));
  }
}

JsonObject::JsonObject(const Json& value, const std::filesystem::path& path, std::string place,
                       FileFault fault)
    : value_(value), path_(path), place_(std::move(place)), fault_(std::move(fault)) {
  if (!value_.is_object()) fail_file(fault_, path_, fmt::format("{}: not an object", place_));
}

int64_t JsonObject::integer(const char* key, int64_t least) const {
  const Json& value = member(key);
  if (!value.is_number_integer()) fail(key, "not an integer");
  if (!value.is_integer_of<int64_t>()) fail(key, "too large");
  const auto result = value.get<int64_t>();
  if (result < least) fail(key, fmt::format("{} is less than {}", result, least));
  return result;
}

double JsonObject::number(const char* key) const {
  if (!member(key).is_number()) fail(key, "not a number");
  return member(key).get<double>();
}

std::string JsonObject::text(const char* key) const {
  if (!member(key).is_string()) fail(key, "not a string");
  return member(key).get<std::string>();
}

std::vector<int64_t> JsonObject::integers(const char* key, size_t most) const {
  const Json& values = array(key);
  if (values.size() > most)
    fail(key, fmt::format("{} entries, but at most {} are allowed", values.size(), most));
  std::vector<int64_t> result;
  result.reserve(values.size());
  for (const Json& value : values) {
    if (!value.is_integer_of<int64_t>() || value.get<int64_t>() < 0) fail(key, "an entry is not a count");
    result.push_back(value.get<int64_t>());
  }
  return result;
}

const Json& JsonObject::array(const char* key) const {
  if (!member(key).is_array()) fail(key, "not an array");
  return member(key);
}

const Json& JsonObject::object(const char* key) const {
  if (!member(key).is_object()) fail(key, "not an object");
  return member(key);
}

std::string JsonObject::place(std::string_view key) const {
  return place_.empty() ? std::string(key) : fmt::format("{}.{}", place_, key);
}

void JsonObject::fail(std::string_view key, std::string_view reason) const {
  fail_file(fault_, path_, fmt::format("{}: {}", place(key), reason));
}

const Json& JsonObject::member(const char* key) const {
  const Json* const found = value_.find(key);
  if (found == nullptr) fail(key, "missing");
  return *found;
}

}  // namespace lockstep::base
