#include "interop/deepspeed/deepspeed_checkpoint.h"

#include <fmt/format.h>
#include <torch/torch.h>

#include <algorithm>
#include <map>
#include <memory>
#include <unordered_map>

#include "interop/deepspeed/optimizer_kind.h"
#include "interop/deepspeed/pickle_reading.h"
#include "interop/deepspeed/shards.h"
#include "interop/pickle.h"
#include "interop/weights_file.h"

namespace lockstep::interop {
namespace {

// As the trainer names what is not the model's own.
std::string own_name(std::string_view part, const std::string& name) {
  return fmt::format("lockstep/{}/{}", part, name);
}

bool is_16_bit(at::ScalarType dtype) { return dtype == at::kHalf || dtype == at::kBFloat16; }

class Assembly {
 public:
  Assembly(const DeepSpeedFiles& files, const DeepSpeedImportOptions& options)
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

  // `owner`: the name under which its values are; another one for tied weights.
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
    // Stage 3 has placeholders in the module; a buffer may really be empty.
    if (shards_->stage() == 3 && shaped.numel() == 0 && model().buffers.count(name) == 0) {
      result_.left_behind.push_back(fmt::format("the weight '{}', of which the files have no values", name));
      return;
    }
    const TensorReference* from = &tensor;
    const bool is_buffer = model().buffers.count(name) > 0;
    const at::ScalarType own = is_buffer ? tensor.dtype : dtype;
    add(saved, own, shaped.numel(), [shards, from, own] { return shards->whole(*from).to(own); });
  }

  // -- optimizer

  // Which parameters each group of options has, in the order of the model.
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
    add(own_name("master", parameter.name), at::kFloat, ShapedName{"", parameter.shape}.numel(),
        [shards, from] { return shards->master(*from).to(at::kFloat); });
  }

  void add_field(const FlatParameter& parameter, const std::string& field, at::ScalarType dtype) {
    const auto shards = shards_;
    const FlatParameter* from = &parameter;
    add(own_name("optimizer", parameter.name + "/" + field), dtype, ShapedName{"", parameter.shape}.numel(),
        [shards, from, field] { return shards->field(*from, field); });
  }

  // -- the rest

  // As GradScaler::state() has it.
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

  // What lockstep::Engine goes on from; a trainer has a schedule of its own.
  void add_engine(const Json& facts) {
    Json engine = {{"global_steps", model().steps}, {"global_samples", model().samples}};
    if (facts.contains("client_state")) engine["client_state"] = facts.at("client_state");
    if (result_.metadata.contains("scaler")) engine["scaler"] = result_.metadata.at("scaler");
    if (model().schedule != nullptr) {
      const bool taken = !options_.weights_alone && add_schedule(facts, engine);
      result_.left_behind.push_back(taken ? "lr_scheduler, where a trainer goes on: its schedule is its own"
                                          : "lr_scheduler: the schedule of the learning rate begins anew");
    }
    if (!options_.weights_alone) result_.metadata["engine"] = std::move(engine);
  }

  // As ScheduledLearningRate::state() has it. False: the rate that it began with is not told.
  bool add_schedule(const Json& facts, Json& engine) const {
    const auto find = [&](std::initializer_list<const char*> path) {
      const Json* value = &facts;
      for (const char* const name : path) value = value == nullptr ? nullptr : value->find(name);
      return value;
    };
    const Json* const rate = find({"config", "optimizer", "params", "lr"});
    const Json* const last = find({"lr_scheduler", "last_batch_iteration"});
    if (rate == nullptr || !rate->is_number()) return false;
    if (last == nullptr || !last->is_number_integer()) return false;
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

}  // namespace

DeepSpeedCheckpoint open_deepspeed_checkpoint(const std::filesystem::path& path,
                                              const DeepSpeedImportOptions& options) {
  return Assembly(find_deepspeed_files(path, options.tag), options).make();
}

}  // namespace lockstep::interop
