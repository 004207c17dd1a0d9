// Trains any model that Python exported with torch.export, on tensors in files or on an image set.

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <lockstep/callbacks.h>
#include <lockstep/error.h>
#include <lockstep/exported_model.h>
#include <lockstep/images.h>
#include <lockstep/launch.h>
#include <lockstep/optim.h>
#include <lockstep/schedule.h>
#include <lockstep/trainer.h>
#include <torch/torch.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <iterator>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "recipes/image_data.h"
#include "recipes/recipe.h"
#include "recipes/tensor_data.h"

namespace lockstep::recipes {
namespace {

constexpr std::string_view kOutputLoss = "output:";

struct ExportedOptions {
  TrainConfig train;
  ImageDataOptions data;
  std::string image_set = "mnist";
  std::optional<double> image_mean;
  std::optional<double> image_std;
  std::string operators;
  std::string loss;
  std::string prediction;
  std::string metrics = "auto";
  std::string optimizer = "adamw";
  double lr = 1e-3;
  double weight_decay = 0;
  double momentum = 0;
  std::string schedule = "constant";
  std::string shard_by = "auto";
  std::string recompute_by;
  std::optional<std::string> dtype;  // unset: the model's
  std::string save_state_dict;
  std::string save_program;

  ExportedOptions() {
    train.max_iter = 10;
    train.batch_size = 32;
    train.print_every = 1;
    train.val_every = 1;
    train.val_at_start = false;
    train.checkpoint_every = 1;
  }

  ProgramOptions own() {
    ProgramOptions table;
    table.description = "Trains a model that torch.export.save wrote.";
    data.add_to(table);
    table
        .add("image_set", image_set, "with --data: the image set",
             {.choices = {"mnist", "fashion-mnist", "cifar10", "cifar100", "tiny-imagenet"}})
        .add("image_mean", image_mean, "with --data: subtracted from the bytes / 255")
        .add("image_std", image_std, "with --data: divides them after that", {.minimum = 1e-6})
        .add("operators", operators, "a library that registers the model's custom operators (TORCH_LIBRARY)")
        .add("loss", loss,
             "cross_entropy, nll, mse, l1, smooth_l1, bce_with_logits, or output:NAME for an output of the "
             "model; "
             "output: for its only one")
        .add("prediction", prediction, "the output that losses and metrics compare with the targets")
        .add("metrics", metrics, "accuracy, mae or mse, several with commas; auto: what fits the loss; none")
        .add("optimizer", optimizer, "the optimizer",
             {.choices = {"sgd", "adam", "adamw", "adagrad", "rmsprop", "adadelta", "lion", "lamb"}})
        .add("lr", lr, "learning rate", {.minimum = 0})
        .add("weight_decay", weight_decay, "weight decay", {.minimum = 0})
        .add("momentum", momentum, "momentum of sgd and rmsprop", {.minimum = 0})
        .add("schedule", schedule, "learning rate over the epochs", {.choices = {"constant", "cosine"}})
        .add("shard_by", shard_by,
             "with --zero-stage 3: the modules that are gathered one after the other, a path like layers.*; "
             "auto: the outermost repeated ones; none")
        .add("recompute_by", recompute_by,
             "the modules that compute their activations again in backward, a path like layers.*; auto: the "
             "outermost repeated ones")
        .add("dtype", dtype, "converts the model to this dtype; left out: it keeps its own",
             {.choices = {"float32", "float64", "bfloat16", "float16", "complex64", "complex128"}})
        .add("save_state_dict", save_state_dict, "file for the trained weights, for Python's load_state_dict")
        .add("save_program", save_program, ".pt2 file with the trained weights, for torch.export.load");
    return table;
  }
};

// --- losses and metrics, by name ---

using Compare = at::Tensor (*)(const at::Tensor& prediction, const at::Tensor& target);

struct NamedCompare {
  const char* name;
  Compare compare;
  const char* metric;  // what --metrics auto means
};

std::vector<int64_t> without_ones(at::IntArrayRef sizes) {
  std::vector<int64_t> rest;
  std::copy_if(sizes.begin(), sizes.end(), std::back_inserter(rest), [](int64_t size) { return size != 1; });
  return rest;
}

// The prediction and the targets with one shape and one dtype, so that no loss broadcasts or rounds.
std::pair<at::Tensor, at::Tensor> paired(const at::Tensor& prediction, const at::Tensor& target) {
  if (without_ones(prediction.sizes()) != without_ones(target.sizes())) {
    throw ConfigError("train",
                      fmt::format("the prediction has the shape [{}] and the targets have [{}]: only "
                                  "dimensions of size 1 may differ",
                                  fmt::join(prediction.sizes(), ", "), fmt::join(target.sizes(), ", ")));
  }
  // The 16 bits of a prediction under autocast would round integers too.
  const bool is_integer = at::isIntegralType(target.scalar_type(), /*includeBool=*/true);
  const at::ScalarType target_dtype = is_integer ? at::kFloat : target.scalar_type();
  const at::ScalarType dtype = c10::promoteTypes(prediction.scalar_type(), target_dtype);
  return {prediction.to(dtype), target.reshape(prediction.sizes()).to(dtype)};
}

// Scores with the classes in dimension 1, as PyTorch's losses take them. A language model gives [batch,
// length, classes] for targets [batch, length]: such scores become rows.
std::pair<at::Tensor, at::Tensor> by_class(const at::Tensor& scores, const at::Tensor& target) {
  if (target.is_floating_point() || scores.dim() != target.dim() + 1 || scores.dim() < 3) {
    return {scores, target};
  }
  const auto sizes = scores.sizes();
  const bool has_classes_second = sizes[0] == target.size(0) && sizes.slice(2) == target.sizes().slice(1);
  const bool has_classes_last = sizes.slice(0, sizes.size() - 1) == target.sizes();
  if (has_classes_second || !has_classes_last) return {scores, target};
  return {scores.flatten(0, -2), target.flatten()};
}

constexpr NamedCompare kLosses[] = {
    {"cross_entropy",
     [](const at::Tensor& p, const at::Tensor& t) {
       const auto [scores, classes] = by_class(p, t);
       return torch::cross_entropy_loss(scores, classes);
     },
     "accuracy"},
    {"nll",
     [](const at::Tensor& p, const at::Tensor& t) {
       const auto [scores, classes] = by_class(p, t);
       return torch::nll_loss(scores, classes);
     },
     "accuracy"},
    {"mse",
     [](const at::Tensor& p, const at::Tensor& t) {
       const auto [prediction, target] = paired(p, t);
       return torch::mse_loss(prediction, target);
     },
     ""},
    {"l1",
     [](const at::Tensor& p, const at::Tensor& t) {
       const auto [prediction, target] = paired(p, t);
       return torch::l1_loss(prediction, target);
     },
     ""},
    {"smooth_l1",
     [](const at::Tensor& p, const at::Tensor& t) {
       const auto [prediction, target] = paired(p, t);
       return torch::smooth_l1_loss(prediction, target);
     },
     ""},
    {"bce_with_logits",
     [](const at::Tensor& p, const at::Tensor& t) {
       const auto [prediction, target] = paired(p, t);
       return torch::binary_cross_entropy_with_logits(prediction, target);
     },
     ""},
};

at::Tensor accuracy(const at::Tensor& prediction, const at::Tensor& target) {
  const auto [scores, classes] = by_class(prediction.detach(), target);
  // cross_entropy takes probabilities of the classes too.
  const bool probabilities = classes.is_floating_point() && classes.sizes() == scores.sizes();
  const bool has_classes = scores.dim() >= 2 && scores.size(1) >= 2;
  const at::Tensor found = has_classes ? scores.argmax(1) : scores;
  const at::Tensor expected = has_classes && probabilities ? classes.argmax(1) : classes;
  if (!has_classes || found.sizes() != expected.sizes()) {
    throw ConfigError(
        "train", fmt::format("the metric accuracy compares scores [N, classes, ...] with classes [N, ...]: "
                             "the prediction has the shape [{}], and the targets have [{}]",
                             fmt::join(prediction.sizes(), ", "), fmt::join(target.sizes(), ", ")));
  }
  return found.eq(expected).to(torch::kFloat32).mean();
}

constexpr NamedCompare kMetrics[] = {
    {"accuracy", accuracy, ""},
    {"mae",
     [](const at::Tensor& p, const at::Tensor& t) {
       const auto [prediction, target] = paired(p.detach(), t);
       return torch::l1_loss(prediction, target);
     },
     ""},
    {"mse",
     [](const at::Tensor& p, const at::Tensor& t) {
       const auto [prediction, target] = paired(p.detach(), t);
       return torch::mse_loss(prediction, target);
     },
     ""},
};

template <size_t n>
const NamedCompare& named_in(const NamedCompare (&table)[n], const char* flag, const std::string& name) {
  std::vector<std::string> names;
  for (const NamedCompare& each : table) {
    if (name == each.name) return each;
    names.emplace_back(each.name);
  }
  throw ConfigError("train", fmt::format("--{} has no value '{}': {}", flag, name, fmt::join(names, ", ")));
}

// The name of an output; "" for the only one. ConfigError: the model has no such output.
std::string output_named(const ExportedModelImpl& model, const std::string& name, const char* flag) {
  const std::vector<std::string>& names = model.output_names();
  if (std::find(names.begin(), names.end(), name) != names.end()) return name;
  if (name.empty() && names.size() == 1) return names[0];
  if (name.empty()) {
    throw ConfigError("train", fmt::format("the model has several outputs: name one with --{}: {}", flag,
                                           fmt::join(names, ", ")));
  }
  throw ConfigError("train", fmt::format("the model has no output '{}': {}", name, fmt::join(names, ", ")));
}

// ConfigError: the model has an input that no data can give.
void refuse_numbers(const ExportedModelImpl& model) {
  const std::vector<std::optional<c10::ScalarType>> dtypes = model.input_dtypes();
  for (size_t i = 0; i < dtypes.size(); ++i) {
    if (dtypes[i]) continue;
    throw ConfigError("train",
                      fmt::format("the input '{}' of the model is a number, and data are tensors: export the "
                                  "model without a dynamic shape for it, which makes it a constant",
                                  model.input_names()[i]));
  }
}

// The loss of the options, checked against the model and the number of tensors of a sample.
Loss make_loss(const ExportedOptions& options, const ExportedModelImpl& model, size_t tensors) {
  refuse_numbers(model);
  const size_t inputs = model.input_names().size();
  const bool by_model = options.loss.starts_with(kOutputLoss);
  // A model that computes its own loss takes the targets as its last input.
  const size_t wanted = by_model && inputs == tensors ? tensors : tensors - 1;
  if (inputs != wanted) {
    throw ConfigError("train", fmt::format("the model has {} inputs ({}), and the data {} before the targets",
                                           inputs, fmt::join(model.input_names(), ", "), tensors - 1));
  }
  if (options.loss.empty()) {
    throw ConfigError(
        "train", "--loss is missing: cross_entropy, nll, mse, l1, smooth_l1, bce_with_logits or output:NAME");
  }
  Compare compare = nullptr;
  std::string metrics = options.metrics == "auto" ? "" : options.metrics;
  std::string loss_output;
  if (by_model) {
    loss_output = output_named(model, options.loss.substr(kOutputLoss.size()), "loss output:NAME");
  } else {
    const NamedCompare& loss = named_in(kLosses, "loss", options.loss);
    compare = loss.compare;
    if (options.metrics == "auto") metrics = loss.metric;
  }
  if (metrics == "none") metrics.clear();
  std::vector<NamedCompare> measured;
  std::istringstream list(metrics);
  for (std::string name; std::getline(list, name, ',');)
    measured.push_back(named_in(kMetrics, "metrics", name));
  const bool compares = compare != nullptr || !measured.empty();
  const std::string prediction = compares ? output_named(model, options.prediction, "prediction") : "";
  return [=](const Batch& batch, const Model& net) -> LossResult {
    const std::vector<at::Tensor>& given = batch.tensors;
    const ModelOutputs outputs = net.call({given.begin(), given.begin() + net.num_inputs()});
    const auto tensor = [&](const std::string& name) -> const at::Tensor& {
      return name.empty() ? outputs.first() : outputs[name];
    };
    LossResult result(compare != nullptr ? compare(tensor(prediction), given.back()) : tensor(loss_output));
    if (result.loss.numel() != 1) {
      throw ConfigError("train", fmt::format("the output '{}' is no loss: it has the shape [{}]",
                                             options.loss, fmt::join(result.loss.sizes(), ", ")));
    }
    for (const NamedCompare& metric : measured) {
      result.metrics[metric.name] = metric.compare(tensor(prediction), given.back());
    }
    return result;
  };
}

// --- optimizers, by name ---

std::shared_ptr<torch::optim::Optimizer> make_optimizer(const ExportedOptions& options, const Model& model,
                                                        const std::string& dtype, const World* world) {
  namespace optim = torch::optim;
  const std::vector<at::Tensor> parameters = model.module()->parameters();
  const std::string& name = options.optimizer;
  const double lr = options.lr;
  const double decay = options.weight_decay;
  if (name == "sgd") {
    return std::make_shared<optim::SGD>(parameters,
                                        optim::SGDOptions(lr).momentum(options.momentum).weight_decay(decay));
  }
  if (name == "adam" || name == "adamw") {
    // In one pass over memory, with the bits of torch.optim.AdamW(fused=True).
    const bool all_float = std::all_of(parameters.begin(), parameters.end(), [](const at::Tensor& parameter) {
      return parameter.scalar_type() == torch::kFloat32;
    });
    const bool on_cpu = world != nullptr && world->device().is_cpu();
    if (on_cpu && all_float && dtype == "float32") {
      return make_cpu_adam(parameters, {.lr = lr, .weight_decay = decay, .adam_w_mode = name == "adamw"});
    }
    if (name == "adam")
      return std::make_shared<optim::Adam>(parameters, optim::AdamOptions(lr).weight_decay(decay));
    return std::make_shared<optim::AdamW>(parameters, optim::AdamWOptions(lr).weight_decay(decay));
  }
  if (name == "adagrad") {
    return std::make_shared<optim::Adagrad>(parameters, optim::AdagradOptions(lr).weight_decay(decay));
  }
  if (name == "rmsprop") {
    return std::make_shared<optim::RMSprop>(
        parameters, optim::RMSpropOptions(lr).momentum(options.momentum).weight_decay(decay));
  }
  if (name == "adadelta") return make_adadelta(parameters, {.lr = lr, .weight_decay = decay});
  if (name == "lion") return make_lion(parameters, {.lr = lr, .weight_decay = decay});
  return make_lamb(parameters, {.lr = lr, .weight_decay = decay});
}

// --- data ---

struct Data {
  std::optional<Loader> train;
  std::optional<Loader> validation;
};

// The number of tensors of a sample, with the target. ConfigError: the options name no data.
size_t tensors_of_sample(const ExportedOptions& options) {
  if (options.data.tensors.given()) return options.data.tensors.count();
  if (options.data.data.empty()) {
    throw ConfigError("train",
                      "data are missing: --inputs FILE --targets FILE, or --data PATH with --image-set NAME");
  }
  return 2;  // an image and its class
}

std::vector<WantedTensor> inputs_of_model(const ExportedModelImpl& model) {
  const std::vector<std::optional<c10::ScalarType>> dtypes = model.input_dtypes();
  std::vector<WantedTensor> wanted;
  for (size_t i = 0; i < dtypes.size(); ++i) wanted.push_back({model.input_names()[i], dtypes[i]});
  return wanted;
}

Data open_data(const ExportedOptions& options, const ExportedModelImpl& model, const World& world) {
  const TensorDataOptions& files = options.data.tensors;
  const LoaderOptions training = {.batch_size = *options.train.batch_size, .shuffle = true};
  const LoaderOptions testing = {.batch_size = *options.train.batch_size};
  Data data;
  if (files.given()) {
    const std::vector<WantedTensor> wanted = inputs_of_model(model);
    data.train.emplace(tensor_dataset(files, Split::kTrain, wanted), training);
    if (files.has_validation()) {
      data.validation.emplace(tensor_dataset(files, Split::kTest, wanted), testing);
    }
    return data;
  }
  ImageTransform transform;
  // A model that normalises its images itself.
  const std::vector<std::optional<c10::ScalarType>> dtypes = model.input_dtypes();
  if (!dtypes.empty() && dtypes[0] == c10::ScalarType::Byte) transform.type = ImageTransform::Type::kUInt8;
  if (options.image_mean || options.image_std) {
    transform.mean = {static_cast<float>(options.image_mean.value_or(0))};
    transform.stddev = {static_cast<float>(options.image_std.value_or(1))};
  }
  data.train = image_loader(find_images(options.image_set, options.data, Split::kTrain), options.data,
                            transform, training, world);
  data.validation = image_loader(find_images(options.image_set, options.data, Split::kTest), options.data,
                                 transform, testing, world);
  return data;
}

// --- the dtype of the model ---

constexpr std::pair<const char*, c10::ScalarType> kDtypes[] = {
    {"float32", c10::ScalarType::Float},          {"float64", c10::ScalarType::Double},
    {"bfloat16", c10::ScalarType::BFloat16},      {"float16", c10::ScalarType::Half},
    {"complex64", c10::ScalarType::ComplexFloat}, {"complex128", c10::ScalarType::ComplexDouble}};

std::string dtype_name(c10::ScalarType dtype) {
  for (const auto& [name, value] : kDtypes) {
    if (value == dtype) return name;
  }
  return c10::toString(dtype);
}

using Dtypes = std::vector<std::pair<std::string, c10::ScalarType>>;

// The dtypes of parameters and buffers, by name.
Dtypes dtypes_of(const torch::nn::Module& module) {
  Dtypes dtypes;
  for (const auto& each : module.named_parameters())
    dtypes.emplace_back(each.key(), each.value().scalar_type());
  for (const auto& each : module.named_buffers()) dtypes.emplace_back(each.key(), each.value().scalar_type());
  return dtypes;
}

// A trainer has one dtype for the model and its inputs: --dtype, or the only one of the model. Complex
// tensors have that of their parts, and a trainer leaves them complex.
std::string training_dtype(const ExportedOptions& options, const Dtypes& dtypes) {
  if (options.dtype) return *options.dtype;
  std::optional<c10::ScalarType> found;
  for (const auto& [name, dtype] : dtypes) {
    if (!c10::isFloatingType(dtype) && !c10::isComplexType(dtype)) continue;
    const c10::ScalarType real = c10::toRealValueType(dtype);
    if (found && real != *found) {
      throw ConfigError("train",
                        fmt::format("the model has tensors of {} and, for example '{}', of {}: choose "
                                    "one with --dtype, to which all are converted",
                                    dtype_name(*found), name, dtype_name(dtype)));
    }
    found = real;
  }
  return dtype_name(found.value_or(c10::ScalarType::Float));
}

// The files that are written after the training, checked before it.
void check_saves(const ExportedOptions& options, const Dtypes& exported, const Dtypes& trained) {
  for (const auto& [flag, file] : {std::pair("save-state-dict", options.save_state_dict),
                                   std::pair("save-program", options.save_program)}) {
    const std::filesystem::path folder = std::filesystem::path(file).parent_path();
    if (folder.empty() || std::filesystem::is_directory(folder)) continue;
    throw ConfigError(
        "train", fmt::format("--{} cannot write '{}': there is no folder '{}'", flag, file, folder.string()));
  }
  for (size_t i = 0; !options.save_program.empty() && i < exported.size(); ++i) {
    if (exported[i].second == trained[i].second) continue;
    throw ConfigError("train",
                      fmt::format("--save-program cannot write a model of {}, because its program is "
                                  "for {}: train in that dtype, or use --save-state-dict",
                                  dtype_name(trained[i].second), dtype_name(exported[i].second)));
  }
}

void train_exported(World& world, const std::string& file, const ExportedOptions& options) {
  std::optional<ExportedModel> model;
  Data data;
  Loss loss;
  Dtypes dtypes;
  TrainConfig config = options.train;
  on_every_rank(world.communicator(), [&] {
    if (!options.operators.empty()) ExportedModel::load_operators(options.operators);
    model.emplace(file);
    if (options.shard_by != "auto") (*model)->shard_by(options.shard_by == "none" ? "" : options.shard_by);
    if (!options.recompute_by.empty()) (*model)->recompute_by(options.recompute_by);
    dtypes = dtypes_of(**model);
    config.dtype = training_dtype(options, dtypes);
    loss = make_loss(options, **model, tensors_of_sample(options));
    data = open_data(options, **model, world);
  });
  const std::shared_ptr<ExportedModelImpl> module = model->ptr();
  const Model net = module->as_model();
  const auto optimizer = make_optimizer(options, net, config.dtype, &world);
  if (!data.validation) config.val_every = 0;
  if (options.schedule == "cosine") {
    config.callbacks.push_back(std::make_shared<ScheduleLearningRate>(
        cosine_annealing({.t_max = std::max<int64_t>(1, config.max_iter)})));
  }
  Trainer trainer(world, net, *optimizer, config, loss);
  on_main_rank(world.communicator(), [&] {
    check_saves(options, dtypes, dtypes_of(*module));
    return std::string();
  });
  const FitResult result =
      data.validation ? trainer.fit(*data.train, *data.validation) : trainer.fit(*data.train);
  const bool saves = !options.save_state_dict.empty() || !options.save_program.empty();
  if (saves && result.stopped != "interrupted") {
    const auto complete = trainer.gather_parameters();
    on_main_rank(world.communicator(), [&] {
      if (!options.save_state_dict.empty()) module->save_state_dict(options.save_state_dict);
      if (!options.save_program.empty()) module->save_program(options.save_program);
      return std::string();
    });
    if (!options.save_state_dict.empty()) trainer.print(fmt::format("Weights: {}", options.save_state_dict));
    if (!options.save_program.empty()) trainer.print(fmt::format("Program: {}", options.save_program));
  }
  trainer.write_report();
}

}  // namespace

bool is_exported_model(std::string_view name) { return name.ends_with(".pt2"); }

std::string exported_defaults() {
  const ExportedOptions options;
  return fmt::format("--epochs {} --batch-size {} (a rank) --optimizer {} --lr {}", options.train.max_iter,
                     *options.train.batch_size, options.optimizer, options.lr);
}

int run_exported(const std::string& file, int argc, const char* const* argv) {
  ExportedOptions options;
  options.train.run_name = std::filesystem::path(file).stem();
  options.train = TrainConfig::from_args(argc, argv, options.train, options.own());
  options.train.dtype = options.dtype.value_or(options.train.dtype);
  options.train.validate();  // precision and --dtype
  return launch(options.train, [&](World& world) { train_exported(world, file, options); });
}

}  // namespace lockstep::recipes
