#include "checkpoint/deepspeed/deepspeed_checkpoint.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <lockstep/error.h>
#include <lockstep/json.h>
#include <torch/torch.h>

#include <algorithm>
#include <cctype>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "checkpoint/deepspeed/shards.h"
#include "checkpoint/deepspeed/states.h"
#include "checkpoint/file_system.h"
#include "checkpoint/pickle.h"
#include "checkpoint/pickle_values.h"
#include "checkpoint/shard.h"
#include "checkpoint/store.h"
#include "checkpoint/weights.h"

namespace lockstep::checkpoint {
namespace {

// --- the optimizer ---

// An optimizer of DeepSpeed or PyTorch as one of ours.
struct OptimizerKind {
  std::string name;                  // as optimizer_class() returns: "AdamW"
  std::vector<std::string> fields;   // tensors of a parameter's state: "exp_avg"
  std::vector<std::string> options;  // of a group: "lr"
  bool counts_steps = false;
};

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

// "adamw" and its parameters; empty: the program made the optimizer.
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
    throw PickleError("it does not say whether its optimizer is Adam or AdamW: give --optimizer");
  }
  return "AdamW";  // without weight decay both are the same
}

Json default_of(const std::string& option) {
  if (option == "amsgrad" || option == "nesterov") return false;
  if (option == "betas") return {0.9, 0.999};
  return 0.0;
}

// Finds the optimizer by the tensors of its state, its groups and the configuration. `wanted`: "Adam" or
// "AdamW", if the file does not say which; or empty. PickleError: unknown, or not in the files.
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

// The options of a group. PickleError: one of them has no counterpart here.
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

// --- the checkpoint ---

// The trainer's names of tensors that are not weights.
std::string state_name(std::string_view part, const std::string& name) {
  return fmt::format("lockstep/{}/{}", part, name);
}

bool is_16_bit(at::ScalarType dtype) { return dtype == at::kHalf || dtype == at::kBFloat16; }

// Makes a DeepSpeedCheckpoint of the files.
class Importer {
 public:
  Importer(const DeepSpeedFiles& files, const DeepSpeedImportOptions& options)
      : options_(options), shards_(std::make_shared<DeepSpeedShards>(files)) {
    result_.folder = files.folder;
    result_.stage = shards_->stage();
    result_.ranks = static_cast<int>(
        std::clamp<int64_t>(model().ranks, static_cast<int64_t>(shards_->ranks()), 1'000'000));
    result_.step = model().steps;
    result_.metadata = {{"imported_from", files.folder.string()}};
  }

  DeepSpeedCheckpoint make() {
    for (const FlatParameter& parameter : shards_->trained()) trained_[parameter.name] = &parameter;
    for (const ShapedName& parameter : model().frozen) frozen_[parameter.name] = &parameter;
    add_weights();
    if (options_.weights_alone) {
      result_.metadata["weights_only"] = true;
      if (shards_->optimizer() != nullptr)
        result_.left_behind.push_back("the optimizer's state (--what model)");
    } else if (shards_->optimizer() == nullptr || shards_->optimizer()->groups.empty()) {
      shards_->fail_model(
          "it has no state of an optimizer that can be read here; --what model takes the weights alone");
    } else {
      add_optimizer();
      add_loss_scale();
    }
    add_facts();
    return std::move(result_);
  }

 private:
  const ModelStates& model() const { return shards_->model(); }

  void add(std::string name, at::ScalarType dtype, int64_t numel, std::function<at::Tensor()> read) {
    result_.tensors.push_back(
        {std::move(name), numel * static_cast<int64_t>(c10::elementSize(dtype)), std::move(read)});
  }

  // -- weights

  void add_weights() {
    for (const auto& [name, tensor] : model().module) {
      const auto shared = model().shared.find(name);
      add_weight(name, shared == model().shared.end() ? name : shared->second, *tensor);
    }
    for (const FlatParameter& parameter : shards_->trained()) {
      if (model().find(parameter.name) == nullptr) {
        shards_->fail_model(fmt::format("it has no weight '{}', which its optimizer trains", parameter.name));
      }
    }
  }

  // `owner`: the name that has the values; another one for tied weights.
  void add_weight(const std::string& name, const std::string& owner, const TensorReference& tensor) {
    const std::string saved = std::string(kModelPrefix) + name;
    const bool widens = options_.float32 && is_16_bit(tensor.dtype);
    const at::ScalarType dtype = widens ? at::kFloat : tensor.dtype;
    const auto shards = shards_;
    if (const auto trained = trained_.find(owner); trained != trained_.end()) {
      const FlatParameter* parameter = trained->second;
      const ShapedName shaped{"", parameter->shape};
      add(saved, dtype, shaped.numel(),
          [shards, parameter, dtype] { return shards->master(*parameter).to(dtype); });
      return;
    }
    if (const auto frozen = frozen_.find(owner); frozen != frozen_.end() && shards_->stage() == 3) {
      const ShapedName* parameter = frozen->second;
      add(saved, dtype, parameter->numel(),
          [shards, parameter, dtype] { return shards->frozen(*parameter).to(dtype); });
      return;
    }
    const ShapedName shaped{"", tensor.sizes};
    // Stage 3 has empty placeholders in the module; but a buffer may be empty.
    if (shards_->stage() == 3 && shaped.numel() == 0 && model().buffers.count(name) == 0) {
      result_.left_behind.push_back(fmt::format("the weight '{}', of which the files have no values", name));
      return;
    }
    const TensorReference* from = &tensor;
    const bool is_buffer = model().buffers.count(name) > 0;
    const at::ScalarType own = is_buffer ? tensor.dtype : dtype;
    add(saved, own, shaped.numel(), [shards, from, own] { return shards->module_tensor(*from).to(own); });
  }

  // -- optimizer

  // The parameters of each group of options, in the order of the model.
  std::vector<std::vector<std::string>> group_names() const {
    std::unordered_map<size_t, size_t> group_of;  // by flat
    const auto& groups = shards_->optimizer()->groups;
    for (size_t i = 0; i < groups.size(); ++i) {
      for (const size_t flat : groups[i].flats) group_of[flat] = i;
    }
    std::vector<std::vector<std::string>> names(groups.size());
    for (const auto& [name, tensor] : model().module) {
      const auto found = trained_.find(name);
      if (found != trained_.end()) names[group_of.at(found->second->flat)].push_back(name);
    }
    return names;
  }

  void add_optimizer() {
    const OptimizerStates& states = *shards_->optimizer();
    if (shards_->trained().empty() && !states.flats.empty()) {
      shards_->fail_model(
          "its optimizer numbers its parameters, and there is more than one way to name them, or none; "
          "--what model "
          "takes the weights alone, and a save with zero_optimization.stage 1 has the names");
    }
    OptimizerKind kind;
    Json groups = Json::array();
    try {
      kind = kind_of_optimizer(states, model().config, options_.optimizer);
      const auto names = group_names();
      for (size_t i = 0; i < names.size(); ++i) {
        groups.push_back(
            {{"parameters", names[i]}, {"options", options_of_group(kind, *states.groups[i].options)}});
      }
    } catch (const PickleError& error) {
      shards_->fail_optimizer(error.what());
    }
    Json saved = Json::object();
    for (const FlatParameter& parameter : shards_->trained()) {
      add_master(parameter);
      const OptimizerStates::Flat& flat = states.flats.at(parameter.flat);
      if (!flat.has_state) continue;
      Json& state = saved[parameter.name] = {{"tensors", Json::array()}};
      if (kind.counts_steps) state["step"] = flat.step.value_or(model().steps - model().skipped_steps);
      for (const auto& [field, tensor] : flat.fields) {
        state["tensors"].push_back(field);
        add_field(parameter, field, tensor->dtype);
      }
    }
    result_.metadata["optimizer"] = {{"class", kind.name}, {"groups", groups}, {"state", saved}};
  }

  void add_master(const FlatParameter& parameter) {
    if (!shards_->has_masters() || options_.float32 || !is_16_bit(model().find(parameter.name)->dtype))
      return;
    const auto shards = shards_;
    const FlatParameter* from = &parameter;
    add(state_name("master", parameter.name), at::kFloat, ShapedName{"", parameter.shape}.numel(),
        [shards, from] { return shards->master(*from).to(at::kFloat); });
  }

  void add_field(const FlatParameter& parameter, const std::string& field, at::ScalarType dtype) {
    const auto shards = shards_;
    const FlatParameter* from = &parameter;
    add(state_name("optimizer", parameter.name + "/" + field), dtype, ShapedName{"", parameter.shape}.numel(),
        [shards, from, field] { return shards->field(*from, field); });
  }

  // -- the rest

  // In the form of GradScaler::state().
  void add_loss_scale() {
    ValueRef value = shards_->optimizer()->loss_scale;
    if (value == nullptr) return;
    if (const auto* object = value->as<Opaque>()) value = object->state;
    const Dict* scaler = value == nullptr ? nullptr : value->as<Dict>();
    if (scaler == nullptr) return;
    const auto scale = number_in(find_member(*scaler, "cur_scale"));
    const auto iteration = number_in(find_member(*scaler, "cur_iter"));
    const auto window = number_in(find_member(*scaler, "scale_window"));
    const auto last = number_in(find_member(*scaler, "last_overflow_iter"));
    if (!scale || !iteration || !window || !last) return;  // a fixed scale
    if (!(*scale > 0 && *scale < 1e38 && *window >= 1 && *window < 1e15 && *iteration >= 0 &&
          *iteration < 1e15 && *last >= -1 && *last < 1e15)) {
      shards_->fail_optimizer("its loss scale makes no sense");
    }
    const auto finite_steps = static_cast<int64_t>(*iteration - *last) - 1;
    const auto hysteresis = number_in(find_member(*scaler, "cur_hysteresis")).value_or(1);
    result_.metadata["scaler"] = {
        {"scale", *scale},
        {"growth_factor", 2.0},
        {"backoff_factor", 0.5},
        {"growth_interval", static_cast<int64_t>(*window)},
        {"_growth_tracker", std::max<int64_t>(finite_steps, 0) % static_cast<int64_t>(*window)},
        {"skipped_steps", model().skipped_steps},
        {"consecutive_skips", 0},
        {"deepspeed",
         {{"cur_scale", *scale},
          {"cur_iter", static_cast<int64_t>(*iteration)},
          {"last_overflow_iter", static_cast<int64_t>(*last)},
          {"cur_hysteresis", static_cast<int64_t>(std::clamp(hysteresis, 1.0, 1e9))}}}};
  }

  void add_facts() {
    Json facts = {{"version", model().version.size() < 100 ? model().version : ""},
                  {"stage", shards_->stage()},
                  {"ranks", model().ranks},
                  {"global_steps", model().steps},
                  {"skipped_steps", model().skipped_steps},
                  {"global_samples", model().samples}};
    if (model().config != nullptr) {
      if (const auto config = plain_value(model().config)) facts["config"] = *config;
    }
    if (model().schedule != nullptr) {
      if (const auto schedule = plain_value(model().schedule)) facts["lr_scheduler"] = *schedule;
    }
    Json client = Json::object();
    for (const auto& [name, value] : model().others) {
      const auto plain = plain_value(value);
      if (plain) {
        client[name] = *plain;
      } else {
        const auto* object = value->as<Opaque>();
        result_.left_behind.push_back(object == nullptr || object->name.empty()
                                          ? name
                                          : fmt::format("{} (an object of '{}')", name, object->name));
      }
    }
    if (!client.empty()) facts["client_state"] = std::move(client);
    add_engine(facts);
    result_.metadata["deepspeed"] = std::move(facts);
  }

  // The state that lockstep::Engine resumes from; a trainer has its own schedule.
  void add_engine(const Json& facts) {
    Json engine = {{"global_steps", model().steps}, {"global_samples", model().samples}};
    if (facts.contains("client_state")) engine["client_state"] = facts.at("client_state");
    if (result_.metadata.contains("scaler")) engine["scaler"] = result_.metadata.at("scaler");
    if (model().schedule != nullptr) {
      const bool taken = !options_.weights_alone && add_schedule(facts, engine);
      result_.left_behind.push_back(taken ? "lr_scheduler, if a trainer resumes: it has its own schedule"
                                          : "lr_scheduler: the learning rate schedule starts again");
    }
    if (!options_.weights_alone) result_.metadata["engine"] = std::move(engine);
  }

  // In the form of ScheduledLearningRate::state(). False: the files do not have the base learning rate.
  bool add_schedule(const Json& facts, Json& engine) const {
    const auto find = [&](std::initializer_list<const char*> path) {
      const Json* value = &facts;
      for (const char* const name : path) value = value == nullptr ? nullptr : value->find(name);
      return value;
    };
    const Json* const rate = find({"config", "optimizer", "params", "lr"});
    const Json* const last = find({"lr_scheduler", "last_batch_iteration"});
    if (rate == nullptr || !rate->is_number()) return false;
    if (last == nullptr || !last->is_integer_of<int64_t>()) return false;
    const int64_t step = std::clamp<int64_t>(last->get<int64_t>(), -1, int64_t{1} << 50) + 1;
    const size_t groups = shards_->optimizer()->groups.size();
    engine["schedule"] = {{"step", step}, {"base_lrs", std::vector<double>(groups, rate->get<double>())}};
    return true;
  }

  const DeepSpeedImportOptions& options_;
  std::shared_ptr<const DeepSpeedShards> shards_;
  std::map<std::string, const FlatParameter*> trained_;
  std::map<std::string, const ShapedName*> frozen_;
  DeepSpeedCheckpoint result_;
};

// The memory that is used at once, unless one tensor is larger.
constexpr int64_t kShardBytes = int64_t{512} << 20;

using Tensors = std::vector<DeepSpeedCheckpoint::Tensor>;

// The index after the last tensor of each shard.
std::vector<size_t> shard_ends(const Tensors& tensors) {
  std::vector<size_t> ends;
  int64_t bytes = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (bytes > 0 && bytes + tensors[i].bytes > kShardBytes) {
      ends.push_back(i);
      bytes = 0;
    }
    bytes += tensors[i].bytes;
  }
  ends.push_back(tensors.size());
  return ends;
}

}  // namespace

DeepSpeedCheckpoint open_deepspeed_checkpoint(const std::filesystem::path& path,
                                              const DeepSpeedImportOptions& options) {
  return Importer(find_deepspeed_files(path, options.tag), options).make();
}

std::filesystem::path save_checkpoint(const DeepSpeedCheckpoint& imported, const std::filesystem::path& to) {
  Snapshot snapshot;
  snapshot.step = imported.step;
  snapshot.world_size = imported.ranks;
  snapshot.metadata = imported.metadata;
  int64_t bytes = 0;
  for (const auto& tensor : imported.tensors) bytes += tensor.bytes;
  Store store(to);
  Draft draft = store.begin(snapshot.step, bytes);
  const std::vector<size_t> ends = shard_ends(imported.tensors);
  std::vector<ShardIndex> shards;
  size_t next = 0;
  for (const size_t end : ends) {
    std::vector<TensorPiece> pieces;
    for (; next < end; ++next) {
      const auto& tensor = imported.tensors[next];
      pieces.push_back(TensorPiece::whole(tensor.name, tensor.read()));
    }
    shards.push_back(write_shard(real_files(), draft.folder(), static_cast<int>(shards.size()),
                                 static_cast<int>(ends.size()), pieces));
  }
  return store.publish(std::move(draft), shards, snapshot).path;
}

}  // namespace lockstep::checkpoint
