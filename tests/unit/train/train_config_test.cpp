#include <lockstep/callbacks.h>
#include <lockstep/config.h>
#include <lockstep/error.h>
#include <lockstep/json.h>

#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>
#include <sstream>

#include "support/config_error.h"
#include "support/temporary_folder.h"
#include "train/train_options.h"

namespace lockstep {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

TrainConfig parse(std::vector<std::string> arguments, const TrainConfig& defaults = {}) {
  std::vector<const char*> argv = {"program"};
  for (const std::string& argument : arguments) argv.push_back(argument.c_str());
  return TrainConfig::from_args(static_cast<int>(argv.size()), argv.data(), defaults);
}

nlohmann::json json_of(const TrainConfig& config) { return nlohmann::json::parse(config.to_json()); }

std::string read_file(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

class TrainConfigTest : public testing::Test {
 protected:
  std::string toml(const std::string& content) {
    const auto path = folder_.path() / "config.toml";
    std::ofstream(path) << content;
    return path.string();
  }

  test::TemporaryFolder folder_;
};

TEST_F(TrainConfigTest, ReadsTheFlagsOfTheBrief) {
  const TrainConfig config = parse({"--nprocs", "2", "--compute_setup", "cpu", "--backend", "gloo"});
  EXPECT_EQ(config.nprocs, 2);
  EXPECT_EQ(config.compute_setup, "cpu");
  EXPECT_EQ(config.backend, "gloo");
}

TEST_F(TrainConfigTest, KeepsTheProgramsDefaults) {
  const TrainConfig config = parse({"--print-every", "1"}, {.max_iter = 50, .print_every = 5});
  EXPECT_EQ(config.max_iter, 50);
  EXPECT_EQ(config.print_every, 1);
  EXPECT_EQ(config.nprocs, std::nullopt);
}

TEST_F(TrainConfigTest, NamesFieldValueAndWhatIsAllowed) {
  EXPECT_THAT(
      [] {
        parse({"--dtype", "float8"});
      },
      ThrowsMessage<ConfigError>("[config] dtype must be one of float32, float64, bfloat16, float16, "
                                 "complex64, complex128: 'float8'"));
  TrainConfig config;
  config.nprocs = -3;
  EXPECT_THAT([&] { config.validate(); },
              ThrowsMessage<ConfigError>("[config] nprocs must be at least 1: -3"));
}

TEST_F(TrainConfigTest, PrintsEveryFieldAndReadsItBack) {
  const nlohmann::json printed = json_of(parse({"--seed", "18446744073709551615"}));
  EXPECT_EQ(printed.at("seed").get<uint64_t>(), 18446744073709551615u);
  EXPECT_TRUE(printed.at("nprocs").is_null());
}

TEST_F(TrainConfigTest, TheCommandLineWinsOverTheVariableOverTheFileOverTheCode) {
  const std::string file = toml("max_iter = 2\nprint_every = 2\nval_every = 2\n");
  ::setenv("LOCKSTEP_MAX_ITER", "3", 1);
  ::setenv("LOCKSTEP_PRINT_EVERY", "3", 1);
  const TrainConfig config = parse({"--config", file, "--max_iter", "4"},
                                   {.max_iter = 1, .val_every = 1, .checkpoint_every = 1, .print_every = 1});
  ::unsetenv("LOCKSTEP_MAX_ITER");
  ::unsetenv("LOCKSTEP_PRINT_EVERY");
  EXPECT_EQ(config.max_iter, 4);
  EXPECT_EQ(config.print_every, 3);
  EXPECT_EQ(config.val_every, 2);
  EXPECT_EQ(config.checkpoint_every, 1);
}

TEST_F(TrainConfigTest, AFileMayHoldWhatConfigJsonHolds) {
  const std::string file = toml(
      "nprocs = 2\ndtype = \"float64\"\nclip_grad_norm = 0.5\ndeterministic = true\n"
      "seed = 7\n[hyperparams]\nlr = 0.1\nlayers = 3\nname = \"a\"\nfast = true\n");
  const TrainConfig config = parse({"--config=" + file});
  EXPECT_EQ(config.nprocs, 2);
  EXPECT_EQ(config.dtype, "float64");
  EXPECT_EQ(config.clip_grad_norm, 0.5);
  EXPECT_TRUE(config.deterministic);
  EXPECT_EQ(config.seed, 7u);
  EXPECT_EQ(json_of(config).at("hyperparams"),
            nlohmann::json({{"lr", 0.1}, {"layers", 3}, {"name", "a"}, {"fast", true}}));
}

TEST_F(TrainConfigTest, ABadFileNamesFilePlaceAndWhatIsAllowed) {
  const auto error_of = [this](const std::string& content) {
    try {
      parse({"--config", toml(content)});
    } catch (const ConfigError& error) {
      return std::string(error.what());
    }
    return std::string("no error");
  };
  EXPECT_THAT(error_of("max_iter = 2.5"), HasSubstr("config.toml': max_iter must be a whole number: 2.5"));
  EXPECT_THAT(error_of("max_iter = \"2\""), HasSubstr("max_iter must be a whole number: \"2\""));
  EXPECT_THAT(error_of("timeout_s = 4294967296"), HasSubstr("timeout_s must be a whole number from"));
  EXPECT_THAT(error_of("seed = -1"), HasSubstr("seed must be a whole number that is not negative: -1"));
  EXPECT_THAT(error_of("verbose = 1"), HasSubstr("verbose must be true or false: 1"));
  EXPECT_THAT(error_of("maxiter = 1"), HasSubstr("unknown option 'maxiter'; the options are nprocs, "));
  EXPECT_THAT(error_of("max_iter = \n"), HasSubstr("is not valid TOML: line 1, column "));
  EXPECT_THAT(error_of("max_iter = -1\n"), HasSubstr("max_iter must be at least 0: -1"));
  EXPECT_THAT(error_of("[hyperparams]\nlist = [1]"), HasSubstr("hyperparams must be true, false, a number"));
  EXPECT_THAT(
      [] {
        parse({"--config", "/nowhere/config.toml"});
      },
      ThrowsMessage<ConfigError>(HasSubstr("cannot read the configuration file '/nowhere/config.toml'")));
}

TEST_F(TrainConfigTest, HyperparametersComeByFlagToo) {
  const TrainConfig config = parse({"--hyperparams", "lr=0.5", "--hyperparams", "net=cnn"});
  EXPECT_EQ(json_of(config).at("hyperparams"), nlohmann::json({{"lr", 0.5}, {"net", "cnn"}}));
  EXPECT_THAT(
      [] {
        parse({"--hyperparams", "lr"});
      },
      ThrowsMessage<ConfigError>(HasSubstr("'lr' is not NAME=VALUE")));
}

TEST_F(TrainConfigTest, FieldsThatContradictEachOtherAreNamed) {
  const auto refused = [](const std::vector<std::string>& arguments, const std::string& text) {
    EXPECT_THAT([&] { parse(arguments); }, ThrowsMessage<ConfigError>(HasSubstr(text)));
  };
  refused({"--batch_size", "4", "--global_batch_size", "8"}, "batch_size (4) and global_batch_size (8)");
  refused({"--precision", "bf16", "--dtype", "float64"},
          "precision bf16 keeps parameters in float32, and dtype is float64: set dtype to float32, or "
          "precision to fp32");
  refused({"--ema_decay", "1"}, "ema_decay must be less than 1");
  refused({"--deterministic", "--cudnn_benchmark"},
          "deterministic and cudnn_benchmark contradict each other: set one of the two to false");
  refused({"--checkpoint_best_only"}, "needs validation, and val_every is 0: set val_every");
  refused({"--plot_every", "2"}, "there are no plotting_functions: give some, or set plot_every to 0");
  refused({"--tracking_tool", "none,mlflow"},
          "tracking_tool is none and others: 'none,mlflow'; leave out none, or the others");
  refused({"--tracking_tool", "wandb"}, "tensorboard, mlflow, none, or a list of them separated by commas");
  refused({"--clip_grad_norm", "nan"}, "clip_grad_norm must be at least 0");
  refused({"--zero_offload_optimizer", "cpu"}, "needs zero_stage 1, 2 or 3, and it is 0: set zero_stage");
  refused({"--zero_stage", "2", "--zero_offload_optimizer", "nvme"}, "nvme needs zero_stage 3");
  refused({"--zero_stage", "3", "--zero_offload_optimizer", "nvme"},
          "needs zero_nvme_path, a folder on that disk: set it");
  refused({"--zero_stage", "2", "--zero_offload_optimizer", "cpu", "--zero_offload_param", "cpu"},
          "zero_offload_param cpu needs zero_stage 3, and it is 2: set zero_stage to 3");
  refused({"--zero_stage", "3", "--zero_offload_param", "cpu"},
          "zero_offload_param cpu needs zero_offload_optimizer too, and it is none: set it to cpu or nvme");
  refused({"--zero_offload_optimizer", "disk"},
          "zero_offload_optimizer must be one of none, cpu, nvme: 'disk'");
  refused({"--zero-offload-param=nvme"}, "zero_offload_param must be one of none, cpu: 'nvme'");
  const std::string file = toml("zero_offload_optimizer = \"disk\"\n");
  refused({"--config", file}, "zero_offload_optimizer must be one of none, cpu, nvme: 'disk'");
  refused({"--zero_stage", "3", "--ema_decay", "0.9"}, "use zero_stage 2, or set ema_decay to 0");
  refused({"--deepspeed"}, "give deepspeed_config a file");
}

TEST_F(TrainConfigTest, TwoOptionsHaveASecondName) {
  const TrainConfig config = parse({"--epochs", "3", "--run-dir", "here"});
  EXPECT_EQ(config.max_iter, 3);
  EXPECT_EQ(config.log_folder, "here");
}

TEST_F(TrainConfigTest, AProgramHasOptionsOfItsOwn) {
  std::string data = "data";
  double lr = 0.1;
  int64_t width = 16;
  bool fast = false;
  double seed = 0.5;  // takes the place of the trainer's
  const ProgramOptions own = {{"data", data, "folder"},
                              {"base_lr", lr, "learning rate"},
                              {"width", width, "of the network"},
                              {"fast", fast, "skip"},
                              {"seed", seed, "of something else"}};
  const std::string file = toml("base_lr = 0.3\nmax_iter = 5\n");
  const std::vector<const char*> argv = {"program", "--config", file.c_str(), "--width=32",
                                         "--fast",  "--seed",   "0.25"};
  const TrainConfig config =
      TrainConfig::from_args(static_cast<int>(argv.size()), argv.data(), {.max_iter = 9}, own);
  EXPECT_EQ(config.max_iter, 5);
  EXPECT_EQ(config.seed, 0u);
  EXPECT_EQ(data, "data");
  EXPECT_EQ(lr, 0.3);
  EXPECT_EQ(width, 32);
  EXPECT_TRUE(fast);
  EXPECT_EQ(seed, 0.25);
  EXPECT_EQ(
      json_of(config).at("hyperparams"),
      nlohmann::json({{"base_lr", 0.3}, {"data", "data"}, {"fast", true}, {"seed", 0.25}, {"width", 32}}));
}

TEST_F(TrainConfigTest, TheProgramsDefaultsStayKnown) {
  double lr = 0.1;
  std::optional<std::string> file;
  const ProgramOptions own = {{"lr", lr, "learning rate"}, {"file", file, "weights"}};
  const auto read = [&own](std::vector<const char*> words, const TrainConfig& defaults) {
    words.insert(words.begin(), "program");
    return TrainConfig::from_args(static_cast<int>(words.size()), words.data(), defaults, own);
  };
  const TrainConfig config = read({"--max-iter", "5", "--lr", "0.3", "--file", "x"}, {.max_iter = 9});
  EXPECT_EQ(config.max_iter, 5);
  const Json usual = train::program_defaults(config);
  EXPECT_EQ(usual.at("max_iter"), Json(9));
  EXPECT_EQ(usual.at("hyperparams"), Json({{"lr", 0.1}}));
  // A configuration of flags is no longer the defaults once it is the base of others.
  EXPECT_EQ(train::program_defaults(read({}, config)).at("max_iter"), Json(5));
  EXPECT_EQ(train::program_defaults(TrainConfig{.max_iter = 3}).at("max_iter"), Json(10000))
      << "without flags there are only those of the fields";
}

TEST_F(TrainConfigTest, PlotsOfAModelThatRank0DoesNotHaveAreRefused) {
  TrainConfig config;
  config.plotting_functions = {[](const Model&, int64_t) { return std::pair(std::string(), Image()); }};
  config.callbacks = {std::make_shared<WritePlots>()};
  config.zero.stage = 2;
  config.validate();
  config.zero.stage = 3;
  EXPECT_THAT([&] { config.validate(); },
              ThrowsMessage<ConfigError>(HasSubstr("WritePlots runs the model on rank 0 alone")));
  config.callbacks = {std::make_shared<WriteMetrics>()};
  config.validate();
}

TEST_F(TrainConfigTest, AModelIsUploadedForTheFieldAndForTheCallback) {
  TrainConfig config;
  config.tracking_tool = "tensorboard,mlflow";
  EXPECT_FALSE(train::uploads_model(config));
  config.log_model = true;
  EXPECT_TRUE(train::uploads_model(config));
  config.log_model = false;
  config.callbacks = {std::make_shared<PrintMetrics>(), std::make_shared<LogModelTracker>()};
  EXPECT_TRUE(train::uploads_model(config));
  config.tracking_tool = "tensorboard";
  EXPECT_FALSE(train::uploads_model(config));
}

TEST_F(TrainConfigTest, AnOptionOfAProgramReplacesOneWithTheSameAlias) {
  int64_t epochs = 7;
  const ProgramOptions own = {{"epochs", epochs, "passes over the data"}};
  const std::vector<const char*> words = {"program", "--epochs", "9"};
  const TrainConfig config =
      TrainConfig::from_args(static_cast<int>(words.size()), words.data(), {.max_iter = 2}, own);
  EXPECT_EQ(epochs, 9);
  EXPECT_EQ(config.max_iter, 2);
}

TEST_F(TrainConfigTest, OptionsOfAProgramHaveRules) {
  std::string layout = "auto";
  int64_t batch = 512;
  std::optional<int64_t> samples;
  bool dry = false;
  ProgramOptions own = {
      {"layout", layout, "of images", {.choices = {"auto", "yes", "no"}}},
      {"batch_size", batch, "over all ranks", {.minimum = 1, .aliases = {"global_batch_size"}}}};
  own.add("samples", samples, "at most", {.minimum = 1, .has_variable = false})
      .add("dry", dry, "one batch", {.negatable = false});
  own.description = "Trains a layout.";
  own.without = {"ema_decay"};
  const auto parse_own = [&](std::vector<const char*> words) {
    words.insert(words.begin(), "program");
    return TrainConfig::from_args(static_cast<int>(words.size()), words.data(), {}, own);
  };
  const auto refusal = [&](const std::vector<const char*>& words) {
    layout = "auto";  // a refused value stays in the field
    samples.reset();
    return test::error_of([&] { parse_own(words); });
  };
  ::setenv("LOCKSTEP_SAMPLES", "3", 1);
  const TrainConfig config = parse_own({"--global-batch-size", "64", "--layout=no", "--dry"});
  ::unsetenv("LOCKSTEP_SAMPLES");
  EXPECT_EQ(batch, 64);
  EXPECT_EQ(layout, "no");
  EXPECT_TRUE(dry);
  EXPECT_FALSE(samples.has_value());
  EXPECT_FALSE(config.batch_size.has_value());
  EXPECT_FALSE(config.global_batch_size.has_value());
  EXPECT_EQ(json_of(config).at("hyperparams"),
            nlohmann::json({{"batch_size", 64}, {"dry", true}, {"layout", "no"}}));
  parse_own({"--samples", "7"});
  EXPECT_EQ(samples, 7);
  EXPECT_EQ(refusal({"--layout", "maybe"}), "[config] layout must be one of auto, yes, no: 'maybe'");
  EXPECT_EQ(refusal({"--samples", "0"}), "[config] samples must be at least 1: 0");
  EXPECT_THAT(refusal({"--no-dry"}), HasSubstr("--no-dry"));
  EXPECT_THAT(refusal({"--ema-decay", "0.5"}), HasSubstr("--ema-decay"));
  try {
    parse_own({"--help"});
    ADD_FAILURE() << "--help did not throw";
  } catch (const HelpRequested& help) {
    EXPECT_THAT(help.what(), HasSubstr("Trains a layout."));
  }
  own.without = {"ema_decai"};
  EXPECT_EQ(refusal({}),
            "[config] ProgramOptions::without names 'ema_decai', which is no option of "
            "TrainConfig: leave it out");
}

// A field that nothing reads is a promise that nobody keeps.
TEST_F(TrainConfigTest, NoFieldIsDead) {
  const std::filesystem::path source = std::getenv("LOCKSTEP_SOURCE_DIR");
  std::string code;
  for (const char* folder : {"src/train", "src/parallel"}) {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(source / folder)) {
      const std::string name = entry.path().filename().string();
      if (entry.is_regular_file() && name != "config.cpp") code += read_file(entry.path());
    }
  }
  const std::string docs = read_file(source / "docs/trainer.md");
  std::set<std::string> fields = {"validation_criterion", "trainstop_criterion", "plotting_functions",
                                  "callbacks", "program_defaults"};
  const nlohmann::json values = json_of(TrainConfig());
  for (const auto& item : values.items()) fields.insert(item.key());
  // The header's own list of fields, so that none is forgotten here. Those of ZeroOptions have flags where
  // the trainer offers them.
  const std::regex declaration("^  (?!static|void|std::string to_json)[a-zA-Z].*?([a-z_]+)( = .*)?;$");
  size_t declared = 0;
  std::istringstream lines(read_file(source / "include/lockstep/config.h"));
  bool is_config = false;  // the header has other structures before it
  for (std::string line; std::getline(lines, line);) {
    is_config |= line.starts_with("struct TrainConfig");
    std::smatch match;
    if (!is_config || !std::regex_match(line, match, declaration) || match[1] == "zero") continue;
    ++declared;
    EXPECT_TRUE(fields.count(match[1].str())) << match[1].str() << " has no flag";
  }
  const auto of_zero = std::count_if(fields.begin(), fields.end(),
                                     [](const std::string& field) { return field.starts_with("zero_"); });
  EXPECT_EQ(declared + static_cast<size_t>(of_zero), fields.size());
  EXPECT_GE(fields.size(), 44u);
  for (const std::string& field : fields) {
    const std::string member = std::regex_replace(field, std::regex("^zero_"), "");
    const std::string owner = member == field ? "config(_|\\(\\))?" : "(zero|zero_|options|optimizer)";
    EXPECT_TRUE(std::regex_search(code, std::regex(owner + "\\.(" + member + ")\\b")))
        << field << " is read by nobody";
    EXPECT_THAT(docs, HasSubstr("`" + field + "`")) << "docs/trainer.md";
  }
}

}  // namespace
}  // namespace lockstep
