// GPT-2 on token files, on the bytes of a text, or on synthetic data.

#include <fmt/format.h>
#include <lockstep/callbacks.h>
#include <lockstep/error.h>
#include <lockstep/launch.h>
#include <lockstep/optim.h>
#include <lockstep/schedule.h>
#include <lockstep/trainer.h>
#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <optional>
#include <sstream>

#include "recipes/byte_pair_tokenizer.h"
#include "recipes/gpt_model.h"
#include "recipes/peak_flops.h"
#include "recipes/recipe.h"
#include "recipes/token_data.h"

namespace lockstep::recipes {
namespace {

constexpr char kSyntheticData[] = "synthetic";
constexpr char kDefaultSize[] = "tiny";

struct GptTrainOptions {
  TrainConfig train;
  std::string data;  // empty: synthetic
  std::string val_data;
  std::string text;
  std::string tokenizer;
  double train_fraction = 0.9;
  std::optional<int64_t> num_workers;
  std::string model = kDefaultSize;
  std::string weights;
  std::optional<int64_t> vocabulary;
  std::optional<int64_t> context;
  std::optional<int64_t> tokens_per_step;
  double lr = 6e-4;
  double min_lr = 6e-5;
  std::optional<int64_t> warmup_steps;
  double weight_decay = 0.1;
  int64_t log_interval = 10;
  std::optional<double> peak_tflops;
  bool activation_checkpointing = false;
  bool save_model = true;

  GptTrainOptions() {
    train.max_iter = 3;
    train.batch_size = 16;
    train.clip_grad_norm = 1;
    train.val_every = 1;
    train.val_at_start = false;
    train.checkpoint_every = 1;
    train.run_name = "gpt";
  }

  ProgramOptions own() {
    ProgramOptions table;
    table.description = "GPT-2 on files of tokens, on a text, or on synthetic data.";
    table.without = {"global_batch_size"};
    table
        .add("data", data,
             "file of uint16 tokens (llm.c's or nanoGPT's), folder with files *train*.bin and *val*.bin, or "
             "'synthetic', the default",
             {.has_variable = false})  // LOCKSTEP_DATA is about images
        .add("val_data", val_data, "file of uint16 tokens that validates, instead of a part of the data")
        .add("text", text, "text file to train on: its bytes are the tokens")
        .add("tokenizer", tokenizer,
             "tokens of the text by GPT-2's tokenizer: a folder, or files with a comma")
        .add("train_fraction", train_fraction,
             "part of a text or a single file to train on; the rest validates", {.minimum = 0, .maximum = 1})
        .add("num_workers", num_workers, "threads of each rank that read ahead; 0: none", {.minimum = 0})
        .add("model", model, "size of the model", {.choices = {"tiny", "124M", "355M", "774M", "1558M"}})
        .add("weights", weights,
             "Hugging Face's weights of a GPT-2 to begin with, *.safetensors; their sizes count")
        .add("vocabulary", vocabulary,
             "number of different tokens; left out: 256 for bytes and for tiny on synthetic data, else 50304",
             {.minimum = 1})
        .add("context", context, "tokens of a sample; left out: 128 for tiny, else 1024", {.minimum = 1})
        .add("tokens_per_step", tokens_per_step,
             "tokens of an optimizer step over all ranks; sets accumulate_steps", {.minimum = 1})
        .add("lr", lr, "highest learning rate of AdamW", {.minimum = 0})
        .add("min_lr", min_lr, "learning rate at the end of the cosine", {.minimum = 0})
        .add("warmup_steps", warmup_steps, "steps in which the rate rises; left out: 2 % of all",
             {.minimum = 0})
        .add("weight_decay", weight_decay, "decay of matrices; vectors have none", {.minimum = 0})
        .add("log_interval", log_interval, "steps between two lines", {.minimum = 1})
        .add("peak_tflops", peak_tflops,
             "10^12 operations per second of each device, for MFU; left out: those of known GPUs in 16 bits",
             {.minimum = 0})
        .add("activation_checkpointing", activation_checkpointing,
             "compute the activations of blocks again in backward instead of keeping them")
        .add("save_model", save_model,
             "write the weights for Hugging Face's transformers into the run folder");
    return table;
  }
};

// --- model, data, optimizer ---

bool trains_on_bytes(const GptTrainOptions& options) {
  return !options.text.empty() && options.tokenizer.empty();
}

models::GptOptions shape_of_preset(const GptTrainOptions& options) {
  auto shape = models::GptOptions::preset(options.model);
  const bool is_synthetic = options.text.empty() && (options.data.empty() || options.data == kSyntheticData);
  // 50,257 tokens, up to a multiple of 64, with which GPUs multiply faster.
  const bool is_small = trains_on_bytes(options) || (is_synthetic && options.model == kDefaultSize);
  shape.vocabulary = options.vocabulary.value_or(is_small ? 256 : 50304);
  shape.context = options.context.value_or(shape.context);
  return shape;
}

void require_same(const char* flag, int64_t given, int64_t of_file, const std::string& file) {
  if (given == of_file) return;
  throw ConfigError("train",
                    fmt::format("--{} {} is not that of the weights, which have {}: leave it out: '{}'", flag,
                                given, of_file, file));
}

Model make_gpt(const GptTrainOptions& options) {
  if (options.weights.empty()) return models::gpt(shape_of_preset(options));
  const auto shape = models::GptOptions::of_weights(read_weights(options.weights));
  if (options.vocabulary) require_same("vocabulary", *options.vocabulary, shape.vocabulary, options.weights);
  if (options.context) require_same("context", *options.context, shape.context, options.weights);
  if (options.model != kDefaultSize) {
    const auto preset = models::GptOptions::preset(options.model);
    if (preset.layers != shape.layers || preset.hidden_size != shape.hidden_size) {
      throw ConfigError("train",
                        fmt::format("--model {} is not the size of the weights, which have {} layers "
                                    "of width {}: leave it out: '{}'",
                                    options.model, shape.layers, shape.hidden_size, options.weights));
    }
  }
  Model model = models::gpt(shape);
  models::load_gpt(model, options.weights);
  return model;
}

std::vector<std::filesystem::path> files_of(const std::string& list) {
  std::vector<std::filesystem::path> files;
  std::istringstream words(list);
  for (std::string word; std::getline(words, word, ',');) files.emplace_back(word);
  return files;
}

TokenSplit find_tokens(const GptTrainOptions& options, int64_t vocabulary) {
  if (!options.text.empty() && !options.data.empty()) {
    throw ConfigError("train", "--text and --data exclude each other: give one of them");
  }
  if (options.text.empty() && !options.tokenizer.empty()) {
    throw ConfigError("train", "--tokenizer is for a text, and files of tokens have theirs: give --text");
  }
  TokenSplit split;
  if (!options.text.empty()) {
    std::optional<BytePairTokenizer> tokenizer;
    if (!options.tokenizer.empty()) tokenizer = BytePairTokenizer::read(files_of(options.tokenizer));
    split = read_text_tokens(options.text, tokenizer ? &*tokenizer : nullptr, options.train_fraction);
  } else if (options.data.empty() || options.data == kSyntheticData) {
    split = synthetic_tokens(vocabulary, options.train_fraction);
  } else {
    split = open_tokens(options.data, options.val_data.empty() ? options.train_fraction : 1);
  }
  if (!options.val_data.empty()) split.validation = {open_token_file(options.val_data)};
  return split;
}

// Matrices decay, vectors (biases and LayerNorm) do not.
std::shared_ptr<torch::optim::Optimizer> make_gpt_optimizer(const Model& model,
                                                            const GptTrainOptions& options,
                                                            bool is_float_on_cpu) {
  std::vector<at::Tensor> matrices;
  std::vector<at::Tensor> vectors;
  for (const at::Tensor& parameter : model.module()->parameters()) {
    (parameter.dim() > 1 ? matrices : vectors).push_back(parameter);
  }
  const auto group = [&](double weight_decay) {
    return torch::optim::AdamWOptions(options.lr).betas({0.9, 0.95}).eps(1e-8).weight_decay(weight_decay);
  };
  std::shared_ptr<torch::optim::Optimizer> optimizer;
  if (is_float_on_cpu) {
    optimizer = make_cpu_adam(
        matrices,
        {.lr = options.lr, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = options.weight_decay});
  } else {
    optimizer = std::make_shared<torch::optim::AdamW>(matrices, group(options.weight_decay));
  }
  optimizer->add_param_group({vectors, std::make_unique<torch::optim::AdamWOptions>(group(0))});
  return optimizer;
}

LossResult gpt_loss(const Batch& batch, const Model& model) {
  return models::gpt_loss(model, batch.data(), batch.target());
}

// --- a run ---

struct GptRunFacts {
  int64_t tokens_per_step = 0;  // of all ranks
  int64_t steps_per_epoch = 0;
  int64_t steps = 0;  // of the whole training
};

int64_t accumulation_of(const GptTrainOptions& options, int64_t context, int world_size) {
  if (!options.tokens_per_step) return options.train.accumulate_steps;
  const int64_t tokens = *options.train.batch_size * context * world_size;
  if (*options.tokens_per_step % tokens == 0) return *options.tokens_per_step / tokens;
  throw ConfigError(
      "train", fmt::format("tokens_per_step {} is no multiple of the {} tokens of one batch on "
                           "all ranks: {} sample(s) of {} on {} rank(s)",
                           *options.tokens_per_step, tokens, *options.train.batch_size, context, world_size));
}

// `config` has the batch size and the accumulation that are in use.
GptRunFacts facts_of(const TrainConfig& config, const Loader& train, int64_t context, const World& world) {
  const int64_t batch_size = config.batch_size.value_or(train.options().batch_size);
  GptRunFacts facts;
  facts.tokens_per_step = batch_size * context * world.size() * config.accumulate_steps;
  const int64_t batches = config.max_batches.value_or(
      train.with_batch_size(batch_size).shard(world.rank(), world.size(), ShardKind::kTrain).num_batches());
  facts.steps_per_epoch = (batches + config.accumulate_steps - 1) / config.accumulate_steps;
  facts.steps = facts.steps_per_epoch * config.max_iter;
  if (config.max_steps > 0) facts.steps = std::min(facts.steps, config.max_steps);
  return facts;
}

// Model FLOPs utilisation: the operations per second that the model needs as a fraction of what the devices
// can do.
class Utilization {
 public:
  Utilization(const GptTrainOptions& options, const models::GptOptions& shape, const World& world)
      : flops_per_token_(models::gpt_flops_per_token(shape)) {
    std::optional<double> peak;
    if (options.peak_tflops) {
      peak = *options.peak_tflops * 1e12;
    } else if (options.train.precision != "fp32" || options.train.dtype == "bfloat16" ||
               options.train.dtype == "float16") {
      peak = peak_flops_of(device_name(world));
    }
    if (peak && *peak > 0) peak_flops_ = *peak * world.size();
  }

  // nullopt: the peak is unknown.
  std::optional<double> of(double tokens_per_s) const {
    if (!peak_flops_) return std::nullopt;
    return tokens_per_s * flops_per_token_ / *peak_flops_;
  }

 private:
  double flops_per_token_;
  std::optional<double> peak_flops_;  // of all ranks
};

class GptTrainer : public Trainer {
 public:
  GptTrainer(World& world, Model model, torch::optim::Optimizer& optimizer, const TrainConfig& config,
             const Loader& train, int64_t context, int64_t log_interval, const Utilization& utilization)
      : Trainer(world, std::move(model), optimizer, config, gpt_loss),
        facts_(facts_of(this->config(), train, context, world)),
        log_interval_(log_interval),
        utilization_(utilization) {}

  const GptRunFacts& facts() const { return facts_; }

 protected:
  void on_train_epoch_start() override { begin_interval(); }

  void on_train_batch_end(const LossResult& loss) override {
    ++interval_steps_;
    if (!prints_after(result().step)) return;
    const auto value = loss.loss.item<double>();  // waits for the device
    const std::chrono::duration<double> elapsed = Clock::now() - interval_start_;
    const double tokens_per_s =
        static_cast<double>(interval_steps_ * facts_.tokens_per_step) / elapsed.count();
    std::string line = fmt::format("Step {}/{} | loss {:.4f} | lr {:.3e} | {:.0f} tokens/s", result().step,
                                   facts_.steps, value, learning_rates(optimizer()).front(), tokens_per_s);
    if (const auto used = utilization_.of(tokens_per_s)) line += fmt::format(" | MFU {:.1f} %", 100 * *used);
    print(line);
    begin_interval();
  }

  void on_val_epoch_end() override {
    const double loss = metric("val_loss");
    print(fmt::format("Validation loss {:.4f}, perplexity {:.2f}", loss, std::exp(loss)));
  }

 private:
  using Clock = std::chrono::steady_clock;

  bool prints_after(int64_t step) const {
    return world().is_main() && (step == 1 || step % log_interval_ == 0);
  }

  void begin_interval() {
    interval_steps_ = 0;
    interval_start_ = Clock::now();
  }

  const GptRunFacts facts_;
  const int64_t log_interval_;
  const Utilization utilization_;
  int64_t interval_steps_ = 0;
  Clock::time_point interval_start_ = Clock::now();
};

LearningRateSchedule schedule_of(const GptTrainOptions& options, int64_t steps) {
  const int64_t warm_up = std::min(options.warmup_steps.value_or((steps + 49) / 50), steps);
  auto cosine = cosine_annealing({.t_max = std::max<int64_t>(1, steps - warm_up), .min_lr = options.min_lr});
  if (warm_up == 0) return cosine;
  // The first step has the rate lr / (warm_up + 1).
  return with_warm_up({.steps = warm_up, .start_factor = 1 / static_cast<double>(warm_up + 1)}, cosine);
}

void save_for_transformers(World& world, Trainer& trainer, const Model& model) {
  const auto folder = std::filesystem::path(trainer.run_folder()) / "hugging_face";
  const auto gathered = trainer.gather_parameters();
  on_main_rank(world.communicator(), [&] {
    models::save_gpt(model, folder);
    return std::string();
  });
  trainer.print(fmt::format("Weights: {}", folder.string()));
}

void train_gpt(World& world, const GptTrainOptions& options) {
  std::optional<Model> made;
  TokenSplit tokens;
  TrainConfig config = options.train;
  std::optional<Loader> train;
  std::optional<Loader> validation;
  models::GptOptions shape;
  on_every_rank(world.communicator(), [&] {
    made = make_gpt(options);
    shape = dynamic_cast<const models::Gpt&>(*made->module()).options();
    tokens = find_tokens(options, shape.vocabulary);
    LoaderOptions loader{.batch_size = *options.train.batch_size};
    loader.num_workers = static_cast<int>(options.num_workers.value_or(1));
    loader.pin_memory = world.device().is_cuda();
    TokenWindows validated(std::move(tokens.validation), shape.context, shape.vocabulary);
    if (validated.size() > 0) validation.emplace(std::move(validated), loader);
    loader.shuffle = true;
    loader.drop_last = true;
    // With --max-batches an epoch begins where the previous one ended.
    loader.endless = options.train.max_batches.has_value();
    train.emplace(TokenWindows(std::move(tokens.train), shape.context, shape.vocabulary), loader);
    config.accumulate_steps = accumulation_of(options, shape.context, world.size());
  });
  const Model& model = *made;
  if (options.activation_checkpointing) set_activation_checkpointing(*model.module());
  const bool is_float_on_cpu = world.device().is_cpu() && options.train.dtype == "float32";
  const auto optimizer = make_gpt_optimizer(model, options, is_float_on_cpu);
  if (!validation) config.val_every = 0;
  if (config.deepspeed_config.empty()) {
    const int64_t steps = facts_of(config, *train, shape.context, world).steps;
    config.callbacks.push_back(std::make_shared<ScheduleLearningRate>(schedule_of(options, steps),
                                                                      ScheduleLearningRate::Per::kStep));
  }
  int64_t parameters = 0;
  for (const at::Tensor& parameter : model.module()->parameters()) parameters += parameter.numel();
  GptTrainer trainer(world, model, *optimizer, config, *train, shape.context, options.log_interval,
                     Utilization(options, shape, world));
  trainer.print(fmt::format("GPT of {} parameters, vocabulary {}, context {}. {} tokens per step, {} steps.",
                            parameters, shape.vocabulary, shape.context, trainer.facts().tokens_per_step,
                            trainer.facts().steps));
  if (!validation) trainer.print("There are too few tokens for a validation.");
  const FitResult result = trainer.fit(*train, validation ? DataSource(*validation) : DataSource());
  if (options.save_model && result.stopped != "interrupted") save_for_transformers(world, trainer, model);
  trainer.write_report();
}

}  // namespace

std::string gpt_defaults() {
  const GptTrainOptions options;
  return fmt::format("--model {} --epochs {} --batch-size {} (a rank) --lr {}", options.model,
                     options.train.max_iter, *options.train.batch_size, options.lr);
}

RecipeModel gpt_model(const std::string& size) {
  GptTrainOptions options;
  if (!size.empty()) options.model = size;
  const Model model = make_gpt(options);
  const auto shape = dynamic_cast<const models::Gpt&>(*model.module()).options();
  // With the loss, whose memory is as large as that of the scores.
  const Model with_loss(
      model.module(), [model](const at::Tensor& tokens) { return models::gpt_loss(model, tokens, tokens); });
  return {.model = with_loss,
          .optimizer = make_gpt_optimizer(model, options, /*is_float_on_cpu=*/false),
          .sample_shape = {shape.context},
          .is_integer = true,
          .batch_size = *options.train.batch_size,
          .global_batch_size = 0};
}

int run_gpt(int argc, const char* const* argv) {
  GptTrainOptions options;
  options.train = TrainConfig::from_args(argc, argv, options.train, options.own());
  return launch(options.train, [&](World& world) { train_gpt(world, options); });
}

}  // namespace lockstep::recipes
