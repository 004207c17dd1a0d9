#pragma once

#include <lockstep/named_tensors.h>
#include <torch/torch.h>

#include <lockstep/json.h>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <tuple>

namespace lockstep::optim {

// Numbers and options to JSON and back.
inline Json to_value(double number) { return exact_number(number); }
inline Json to_value(bool flag) { return flag; }
inline Json to_value(int64_t number) { return number; }
inline Json to_value(const std::tuple<double, double>& pair) { return pair; }
template <typename T>
Json to_value(const std::optional<T>& value) {
  return value;
}

inline void from_value(const Json& value, double& number) { number = exact_number_of(value); }
inline void from_value(const Json& value, bool& flag) { value.get_to(flag); }
inline void from_value(const Json& value, int64_t& number) { value.get_to(number); }
inline void from_value(const Json& value, std::tuple<double, double>& pair) { value.get_to(pair); }
template <typename T>
void from_value(const Json& value, std::optional<T>& result) {
  result = value.is_null() ? std::nullopt : std::optional<T>(value.get<T>());
}

// Takes the fields of one state apart: tensors to `tensors` under "PREFIX/NAME", all else
// to the JSON object, which also lists the tensors that there are.
class FieldWriter {
 public:
  FieldWriter(NamedTensors& tensors, std::string prefix) : tensors_(tensors), prefix_(std::move(prefix)) {}

  template <typename T>
  void operator()(const char* name, const T& value) {
    values_[name] = to_value(value);
  }
  void operator()(const char* name, const at::Tensor& tensor);
  void operator()(const char* name, const std::deque<at::Tensor>& list);

  const Json& values() const { return values_; }

 private:
  NamedTensors& tensors_;
  std::string prefix_;
  Json values_ = {{"tensors", Json::array()}};
};

// Saved tensors by name; each may be taken once.
using TensorPool = std::map<std::string, at::Tensor>;

// Puts the fields together again. Tensors are copies on the device and in the dtype of `like`:
// float32 and 16 bit become each other. ConfigError: a tensor is missing, or is neither a scalar
// nor of like's shape and dtype.
class FieldReader {
 public:
  FieldReader(const Json& values, TensorPool& pool, std::string prefix, at::Tensor like, bool allow_scalars)
      : values_(values),
        pool_(pool),
        prefix_(std::move(prefix)),
        like_(std::move(like)),
        allow_scalars_(allow_scalars) {}

  template <typename T>
  void operator()(const char* name, T& value) {
    from_value(values_.at(name), value);
  }
  void operator()(const char* name, at::Tensor& tensor);
  void operator()(const char* name, std::deque<at::Tensor>& list);

 private:
  at::Tensor take(const std::string& name);

  const Json& values_;
  TensorPool& pool_;
  std::string prefix_;
  at::Tensor like_;
  bool allow_scalars_;
};

// Gives one parameter its saved state, without a look at the others: `values`, and the tensors
// "NAME/FIELD". The optimizer is of a class that is known here. ConfigError as FieldReader, and the
// optimizer is unchanged then.
void load_state_of(torch::optim::Optimizer& optimizer, const at::Tensor& parameter, const std::string& name,
                   const Json& values, const NamedTensors& tensors);

}  // namespace lockstep::optim
