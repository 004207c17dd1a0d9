#include "interop/deepspeed/optimizer_kind.h"

#include <fmt/ranges.h>

#include <lockstep/json.h>
#include <algorithm>
#include <cctype>
#include <set>

#include "interop/deepspeed/pickle_reading.h"

namespace lockstep::interop {
namespace {

const std::vector<OptimizerKind>& kinds() {
  static const std::vector<OptimizerKind> kKinds = {
      {"Adam",
       {"exp_avg", "exp_avg_sq", "max_exp_avg_sq"},
       {"lr", "betas", "eps", "weight_decay", "amsgrad"},
       true},
      {"AdamW",
       {"exp_avg", "exp_avg_sq", "max_exp_avg_sq"},
       {"lr", "betas", "eps", "weight_decay", "amsgrad"},
       true},
      {"Lion", {"exp_avg"}, {"lr", "betas", "weight_decay"}, false},
      {"Adagrad", {"sum"}, {"lr", "lr_decay", "weight_decay", "initial_accumulator_value", "eps"}, true},
      {"SGD", {"momentum_buffer"}, {"lr", "momentum", "dampening", "weight_decay", "nesterov"}, false},
  };
  return kKinds;
}

const OptimizerKind& kind_named(const std::string& name) {
  return *std::find_if(kinds().begin(), kinds().end(),
                       [&](const OptimizerKind& kind) { return kind.name == name; });
}

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return std::tolower(c); });
  return text;
}

// "adamw", and its parameters; empty where the program made the optimizer itself.
std::pair<std::string, const Dict*> configured(ValueRef config) {
  const Dict* dict = config == nullptr ? nullptr : config->as<Dict>();
  ValueRef optimizer = dict == nullptr ? nullptr : find_member(*dict, "optimizer");
  const Dict* section = optimizer == nullptr ? nullptr : optimizer->as<Dict>();
  ValueRef type = section == nullptr ? nullptr : find_member(*section, "type");
  if (type == nullptr || type->as<std::string>() == nullptr) return {};
  ValueRef parameters = find_member(*section, "params");
  return {lower(*type->as<std::string>()), parameters == nullptr ? nullptr : parameters->as<Dict>()};
}

bool is_false(const Dict* dict, std::string_view key) {
  ValueRef value = dict == nullptr ? nullptr : find_member(*dict, key);
  return value != nullptr && number_in(value) == 0.0;
}

// Adam and AdamW keep the same state.
std::string which_adam(const OptimizerStates& states, ValueRef config, const std::string& wanted) {
  if (!wanted.empty()) return wanted;
  for (const auto& group : states.groups) {
    if (ValueRef decoupled = find_member(*group.options, "decoupled_weight_decay")) {
      return number_in(decoupled) == 0.0 ? "Adam" : "AdamW";
    }
  }
  const auto [type, parameters] = configured(config);
  if (type == "adamw") return "AdamW";
  if (type == "adam") return is_false(parameters, "adam_w_mode") ? "Adam" : "AdamW";
  if (!type.empty()) {
    throw PickleError(fmt::format("its optimizer is '{}', which is not known here", type));
  }
  const bool decays = std::any_of(states.groups.begin(), states.groups.end(), [](const auto& group) {
    ValueRef decay = find_member(*group.options, "weight_decay");
    return decay != nullptr && number_in(decay) != 0.0;
  });
  if (decays) {
    throw PickleError("it does not say whether its optimizer is Adam or AdamW: say so with --optimizer");
  }
  return "AdamW";  // without weight decay they are the same
}

Json default_of(const std::string& option) {
  if (option == "amsgrad" || option == "nesterov") return false;
  if (option == "betas") return {0.9, 0.999};
  return 0.0;
}

}  // namespace

OptimizerKind kind_of_optimizer(const OptimizerStates& states, ValueRef config, const std::string& wanted) {
  std::set<std::string> fields;
  for (const auto& flat : states.flats) {
    for (const auto& field : flat.fields) fields.insert(field.first);
  }
  const auto has = [&](const char* field) { return fields.count(field) > 0; };
  const std::string type = configured(config).first;
  const auto has_option = [&](const char* option) {
    return !states.groups.empty() && find_member(*states.groups[0].options, option) != nullptr;
  };
  std::string name;
  if (has("exp_avg") && has("exp_avg_sq")) {
    name = which_adam(states, config, wanted);
  } else if (has("exp_avg")) {
    name = "Lion";
  } else if (has("sum")) {
    name = "Adagrad";
  } else if (has("momentum_buffer") || (fields.empty() && has_option("nesterov"))) {
    name = "SGD";
  } else if (fields.empty() && has_option("betas") && has_option("eps")) {  // has made no step
    name = which_adam(states, config, wanted);
  }
  if (name.empty()) {
    throw PickleError(fmt::format("its optimizer{} is not known here; it keeps: {}",
                                  type.empty() ? "" : " '" + type + "'", fmt::join(fields, ", ")));
  }
  const OptimizerKind& kind = kind_named(name);
  for (const std::string& field : fields) {
    if (std::find(kind.fields.begin(), kind.fields.end(), field) == kind.fields.end()) {
      throw PickleError(fmt::format("its optimizer keeps '{}', which {} does not have here", field, name));
    }
  }
  return kind;
}

Json options_of_group(const OptimizerKind& kind, const Dict& options) {
  for (const char* option : {"maximize", "bias_correction"}) {
    ValueRef value = find_member(options, option);
    const bool usual = std::string_view(option) == "bias_correction";
    if (value != nullptr && (number_in(value) != 0.0) != usual) {
      throw PickleError(fmt::format("its optimizer has the option {} = {}, which {} does not have here",
                                    option, usual ? "False" : "True", kind.name));
    }
  }
  Json result = Json::object();
  for (const std::string& option : kind.options) {
    ValueRef value = find_member(options, option);
    const auto plain = value == nullptr ? default_of(option) : plain_value(value);
    if (!plain) throw PickleError(fmt::format("the option '{}' of its optimizer is no number", option));
    result[option] = *plain;
  }
  return result;
}

}  // namespace lockstep::interop
