#include <lockstep/error.h>
#include <lockstep/train_config.h>

#include <nlohmann/json.hpp>

namespace lockstep {
namespace {

using testing::ThrowsMessage;

TrainConfig parse(std::vector<const char*> arguments, const TrainConfig& defaults = {}) {
  arguments.insert(arguments.begin(), "program");
  return TrainConfig::from_args(static_cast<int>(arguments.size()), arguments.data(), defaults);
}

TEST(TrainConfigTest, ReadsTheFlagsOfTheBrief) {
  const TrainConfig config = parse({"--nprocs", "2", "--compute_setup", "cpu", "--backend", "gloo"});
  EXPECT_EQ(config.nprocs, 2);
  EXPECT_EQ(config.compute_setup, "cpu");
  EXPECT_EQ(config.backend, "gloo");
}

TEST(TrainConfigTest, KeepsTheProgramsDefaults) {
  const TrainConfig config = parse({"--print-every", "1"}, {.max_iter = 50, .print_every = 5});
  EXPECT_EQ(config.max_iter, 50);
  EXPECT_EQ(config.print_every, 1);
  EXPECT_EQ(config.nprocs, std::nullopt);
}

TEST(TrainConfigTest, NamesFieldValueAndWhatIsAllowed) {
  EXPECT_THAT(
      [] {
        parse({"--dtype", "float8"});
      },
      ThrowsMessage<ConfigError>(
          "[config] dtype must be one of float32, float64, bfloat16, float16: 'float8'"));
  TrainConfig config;
  config.nprocs = -3;
  EXPECT_THAT([&] { config.validate(); },
              ThrowsMessage<ConfigError>("[config] nprocs must be at least 1: -3"));
}

TEST(TrainConfigTest, PrintsEveryField) {
  const nlohmann::json printed = nlohmann::json::parse(parse({"--seed", "18446744073709551615"}).to_json());
  EXPECT_EQ(printed.at("seed").get<uint64_t>(), 18446744073709551615u);
  EXPECT_TRUE(printed.at("nprocs").is_null());
  EXPECT_EQ(printed.size(), 12u);
}

}  // namespace
}  // namespace lockstep
