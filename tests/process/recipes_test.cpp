// `lockstep train` as a user runs it: two processes, made-up images, every printed line.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/error.h>
#include <signal.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <optional>
#include <regex>
#include <sstream>
#include <thread>

#include "support/process.h"
#include "support/temporary_folder.h"

namespace lockstep::test {
namespace {

using std::chrono::seconds;
using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

class RecipesTest : public testing::Test {
 protected:
  std::vector<std::string> command(const std::vector<std::string>& words) const {
    std::vector<std::string> all = {"env", "-C", folder_.path().string(), program_path("lockstep"), "train"};
    all.insert(all.end(), words.begin(), words.end());
    return all;
  }

  Process start(const std::vector<std::string>& words,
                const std::optional<std::string>& data = std::nullopt) const {
    return Process(command(words), {{"LOCKSTEP_COMPUTE_SETUP", "cpu"},
                                    {"LOCKSTEP_PROGRESS", "none"},
                                    {"LOCKSTEP_DATA", data},
                                    {"HOME", folder_.path().string()},
                                    {"OMP_NUM_THREADS", std::nullopt}});
  }

  static Finished finish(Process& process) { return test::finish(process, seconds(240)); }

  Finished train(const std::vector<std::string>& words) const {
    Process process = start(words);
    return finish(process);
  }

  std::string run_folder() const { return (folder_.path() / "run").string(); }

  TemporaryFolder folder_{"/dev/shm"};
};

// A .npy file of a table of float32.
void write_npy(const std::filesystem::path& path, int64_t rows, int64_t columns,
               const std::function<float(int64_t row, int64_t column)>& value) {
  std::string header =
      fmt::format("{{'descr': '<f4', 'fortran_order': False, 'shape': ({}, {}), }}", rows, columns);
  header.resize(117, ' ');
  header += '\n';
  std::ofstream file(path, std::ios::binary);
  file << "\x93NUMPY\x01" << '\0' << static_cast<char>(header.size()) << '\0' << header;
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < columns; ++j) {
      const float number = value(i, j);
      file.write(reinterpret_cast<const char*>(&number), sizeof(number));
    }
  }
}

TEST_F(RecipesTest, TensorsOfFilesAreTheData) {
  write_npy(folder_.path() / "x.npy", 64, 3,
            [](int64_t i, int64_t j) { return static_cast<float>((i * 7 + j) % 5); });
  write_npy(folder_.path() / "y.npy", 64, 2,
            [](int64_t i, int64_t j) { return static_cast<float>((i + j) % 2); });
  write_npy(folder_.path() / "short.npy", 63, 2, [](int64_t, int64_t) { return 0.F; });
  const Finished done = train({"sine", "--nprocs", "2", "--inputs", "x.npy", "--targets", "y.npy",
                               "--val-inputs", "x.npy", "--val-targets", "y.npy", "--val-every", "1",
                               "--epochs", "2", "--print-every", "1", "--run-dir", run_folder()});
  ASSERT_EQ(done.code, 0) << done.output;
  EXPECT_THAT(done.output, AllOf(HasSubstr("Trained 2 epochs (4 steps) on 2 ranks"), HasSubstr("Val_Loss")));
  const Finished refused = train({"sine", "--nprocs", "2", "--inputs", "x.npy", "--targets", "short.npy"});
  EXPECT_EQ(refused.code, 2) << refused.output;
  EXPECT_THAT(refused.errors, HasSubstr("'x.npy' has 64 samples, and 'short.npy' has 63"));
  EXPECT_THAT(train({"sine", "--inputs", "x.npy"}).errors, HasSubstr("--inputs needs --targets"));
  EXPECT_THAT(train({"mnist", "--inputs", "x.npy", "--targets", "y.npy"}).errors,
              HasSubstr("no integers: F32"));
}

struct StoredTensor {
  std::string name;
  std::string dtype;
  std::string shape;
  std::string bytes;
};

void write_safetensors(const std::filesystem::path& path, const std::vector<StoredTensor>& tensors) {
  std::string header;
  size_t begin = 0;
  for (const StoredTensor& tensor : tensors) {
    header += fmt::format(R"({}"{}": {{"dtype": "{}", "shape": {}, "data_offsets": [{}, {}]}})",
                          header.empty() ? "{" : ", ", tensor.name, tensor.dtype, tensor.shape, begin,
                          begin + tensor.bytes.size());
    begin += tensor.bytes.size();
  }
  header += "}";
  header.resize((header.size() + 7) / 8 * 8, ' ');
  const uint64_t size = header.size();
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(&size), sizeof(size));
  file << header;
  for (const StoredTensor& tensor : tensors) file << tensor.bytes;
}

// The bytes after the header of a file that write_npy() wrote.
std::string npy_bytes(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream content;
  content << file.rdbuf();
  return content.str().substr(128);
}

TEST_F(RecipesTest, TensorsOfEveryKindOfFileTrainToTheSameNumbers) {
  const std::filesystem::path folder = folder_.path();
  write_npy(folder / "x.npy", 64, 3,
            [](int64_t i, int64_t j) { return static_cast<float>((i * 7 + j) % 5); });
  write_npy(folder / "y.npy", 64, 2, [](int64_t i, int64_t j) { return static_cast<float>((i + j) % 2); });
  write_safetensors(folder / "both.safetensors", {{"x", "F32", "[64, 3]", npy_bytes(folder / "x.npy")},
                                                  {"y", "F32", "[64, 2]", npy_bytes(folder / "y.npy")}});
  Process zip(
      {"env", "-C", folder.string(), "python3", "-c",
       "import zipfile\n"
       "with zipfile.ZipFile('both.npz', 'w') as file: [file.write(name) for name in ('x.npy', 'y.npy')]"});
  ASSERT_EQ(finish(zip).code, 0) << zip.errors();
  Process exported({program_path("lockstep"), "ckpt", "export", (folder / "both.safetensors").string(),
                    "--to", (folder / "both.pt").string()});
  ASSERT_EQ(finish(exported).code, 0) << exported.errors();
  const auto loss = [this](const std::string& inputs, const std::string& targets, const std::string& run) {
    const Finished done = train({"sine", "--inputs", inputs, "--targets", targets, "--epochs", "1",
                                 "--print-every", "1", "--run-dir", run_folder() + run});
    EXPECT_EQ(done.code, 0) << done.errors;
    std::smatch match;
    return std::regex_search(done.output, match, std::regex("Train_Loss: [0-9.]+")) ? match[0].str() : "";
  };
  const std::string expected = loss("x.npy", "y.npy", "npy");
  EXPECT_NE(expected, "");
  for (const std::string kind : {"npz", "safetensors", "pt"}) {
    EXPECT_EQ(loss("both." + kind + ":x", "both." + kind + ":y", kind), expected) << kind;
  }
}

TEST_F(RecipesTest, ImagesOfTensorsTrainAnImageRecipe) {
  std::string images;
  std::string labels;
  for (int i = 0; i < 16; ++i) {
    images.append(28 * 28, static_cast<char>(15 * i));
    labels += static_cast<char>(i % 10);
  }
  write_safetensors(folder_.path() / "digits.safetensors",
                    {{"images", "U8", "[16, 28, 28]", images}, {"labels", "U8", "[16]", labels}});
  const std::string file = "digits.safetensors";
  const std::vector<std::string> words = {"mnist",    "--inputs",  file,           "--targets", file,
                                          "--epochs", "1",         "--batch-size", "4",         "--nprocs",
                                          "2",        "--run-dir", run_folder()};
  EXPECT_THAT(train(words).errors, HasSubstr("mnist validates: give --val_inputs and --val_targets too"));
  std::vector<std::string> validated = words;
  validated.insert(validated.end(), {"--val-inputs", file, "--val-targets", file});
  const Finished run = train(validated);
  EXPECT_EQ(run.code, 0) << run.errors;
  EXPECT_THAT(run.output,
              AllOf(HasSubstr("Train Epoch: 1 [0/16 (0%)]"), ContainsRegex("Accuracy: [0-9]+/16 ")));
}

// What the lines look like with every measured number replaced.
std::string without_losses(const std::string& text) {
  return std::regex_replace(text, std::regex(R"((Loss: |loss: )\d+\.\d+)"), "$1#");
}

// The lines of the page, not those that every trainer prints.
std::vector<std::string> page_lines(const std::string& output, const std::string& pattern) {
  std::vector<std::string> kept;
  for (const std::string& line : lines_of(without_losses(output))) {
    if (std::regex_search(line, std::regex(pattern))) kept.push_back(line);
  }
  return kept;
}

const std::vector<std::string> kSmallMnist = {"mnist", "--data",       "synthetic", "--max-samples",
                                              "320",   "--batch-size", "32",        "--test-batch-size",
                                              "100",   "--nprocs",     "2"};

std::vector<std::string> with(std::vector<std::string> words, const std::vector<std::string>& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

TEST_F(RecipesTest, TheCommandAloneListsTheRecipesWithTheirDefaults) {
  const Finished list = train({});
  EXPECT_EQ(list.code, kExitSuccess);
  for (const char* text : {"  sine ", "  mnist ", "  fashion-mnist ", "  cifar100 ", "  vit ", "  gpt ",
                           "--epochs 14 --batch-size 64 (a rank)", "--batch-size 512 (over all ranks)"}) {
    EXPECT_THAT(list.output, HasSubstr(text));
  }
  const Finished wrong = train({"fashion_mnist"});
  EXPECT_EQ(wrong.code, kExitUsage);
  EXPECT_THAT(wrong.errors,
              HasSubstr("[train] unknown recipe 'fashion_mnist'; did you mean 'fashion-mnist'?; there are "
                        "sine, mnist, fashion-mnist, cifar100, vit, gpt\n"));
  EXPECT_THAT(train({"llama"}).errors, HasSubstr("[train] unknown recipe 'llama'; there are sine, mnist, "
                                                 "fashion-mnist, cifar100, vit, gpt\n"));
}

TEST_F(RecipesTest, MnistPrintsPrincetonsLinesOverBothRanks) {
  const Finished run = train(
      with(kSmallMnist, {"--epochs", "2", "--log-interval", "2", "--run-dir", run_folder(), "--save-model"}));
  EXPECT_EQ(run.code, kExitSuccess) << run.errors;
  EXPECT_EQ(run.errors, "");
  // 320 samples in batches of 32 on two ranks: five steps, of which every second speaks.
  std::vector<std::string> expected;
  for (const int epoch : {1, 2}) {
    for (const auto& [seen, percent] : {std::pair{0, 0}, {128, 40}, {256, 80}}) {
      expected.push_back(fmt::format("Train Epoch: {} [{}/320 ({}%)]\tLoss: #", epoch, seen, percent));
    }
  }
  EXPECT_EQ(page_lines(run.output, "^Train Epoch"), expected);
  EXPECT_THAT(run.output, ContainsRegex("\n\nTest set: Average loss: [0-9]+\\.[0-9]{4}, Accuracy: "
                                        "[0-9]+/320 \\([0-9]+%\\)\n\nTrain Epoch: 2"));
  EXPECT_THAT(run.output, HasSubstr("Run folder: " + run_folder()));
  EXPECT_THAT(run.output, HasSubstr("Report: " + run_folder() + "/report.html\n"));
  EXPECT_TRUE(std::filesystem::exists(folder_.path() / "run/report.html"));
  EXPECT_TRUE(std::filesystem::exists(folder_.path() / "run/metrics.csv"));

  Process inspect({program_path("lockstep"), "ckpt", "inspect", (folder_.path() / "mnist_cnn.pt").string()});
  EXPECT_EQ(finish(inspect).code, kExitSuccess) << inspect.errors();
  EXPECT_THAT(inspect.output(), AllOf(HasSubstr("conv1.weight"), HasSubstr("fc2.bias")));
}

TEST_F(RecipesTest, MnistTestsEverySampleOnceOnAnyNumberOfRanks) {
  const auto accuracy = [this](const std::string& ranks) {
    const Finished run =
        train({"mnist", "--data", "synthetic", "--max-samples", "101", "--epochs", "0", "--val-at-start",
               "--test-batch-size", "7", "--nprocs", ranks, "--run-dir", run_folder() + ranks});
    EXPECT_EQ(run.code, kExitSuccess) << run.errors;
    std::smatch match;
    const bool found = std::regex_search(run.output, match, std::regex("Test set: .*"));
    return found ? match[0].str() : run.output;
  };
  const std::string alone = accuracy("1");
  EXPECT_THAT(alone, ContainsRegex("Accuracy: [0-9]+/101 "));
  EXPECT_EQ(accuracy("2"), alone);
  EXPECT_EQ(accuracy("3"), alone);
}

TEST_F(RecipesTest, ImagesOnTheDeviceTrainToTheSameNumbers) {
  const auto lines = [this](const std::string& where) {
    const Finished run = train(with(kSmallMnist, {"--epochs", "1", "--log-interval", "1", "--device-data",
                                                  where, "--run-dir", run_folder() + where}));
    EXPECT_EQ(run.code, kExitSuccess) << run.errors;
    std::vector<std::string> kept;
    for (const std::string& line : lines_of(run.output)) {
      if (line.starts_with("Train Epoch") || line.starts_with("Test set")) kept.push_back(line);
    }
    return kept;
  };
  const std::vector<std::string> streamed = lines("no");
  EXPECT_EQ(streamed.size(), 6u);
  EXPECT_EQ(lines("yes"), streamed);
}

TEST_F(RecipesTest, ADryRunIsOneBatchAnEpoch) {
  const Finished run = train(with(kSmallMnist, {"--epochs", "2", "--dry-run", "--run-dir", run_folder()}));
  EXPECT_EQ(run.code, kExitSuccess) << run.errors;
  const std::vector<std::string> expected = {"Train Epoch: 1 [0/320 (0%)]\tLoss: #",
                                             "Train Epoch: 2 [0/320 (0%)]\tLoss: #"};
  EXPECT_EQ(page_lines(run.output, "^Train Epoch"), expected);
  EXPECT_EQ(page_lines(run.output, "^Test set: .*/320 ").size(), 2u) << "as on the page: " << run.output;
}

TEST_F(RecipesTest, TheStartShowsWhatDiffersFromTheRecipesDefaults) {
  const Finished run = train({"mnist", "--data", "synthetic", "--epochs", "0", "--lr", "0.5", "--val-every",
                              "1", "--run-dir", run_folder()});
  ASSERT_EQ(run.code, kExitSuccess) << run.errors;
  std::vector<std::string> options;
  for (const std::string& line : lines_of(run.output)) {
    if (line.starts_with("  ")) options.push_back(line);
  }
  const std::vector<std::string> expected = {"  compute_setup  cpu",       "  log_folder     /",
                                             "  max_iter       0",         "  progress       none",
                                             "  data           synthetic", "  lr             0.5"};
  ASSERT_EQ(options.size(), expected.size()) << run.output;
  for (size_t i = 0; i < options.size(); ++i) EXPECT_THAT(options[i], testing::StartsWith(expected[i]));
  EXPECT_THAT(options[2], ContainsRegex("0 +\\(default 14\\)$"));
  EXPECT_THAT(options[5], ContainsRegex("0.5 +\\(default 1.0\\)$"));
  std::stringstream defaults;
  defaults << std::ifstream(folder_.path() / "run/config_defaults.json").rdbuf();
  EXPECT_THAT(defaults.str(), AllOf(HasSubstr("\"max_iter\": 14"), HasSubstr("\"lr\": 1.0")));
}

TEST_F(RecipesTest, ARecipeGoesOnWhereItWas) {
  const auto words = with(kSmallMnist, {"--run-dir", run_folder(), "--log-interval", "10"});
  EXPECT_EQ(train(with(words, {"--epochs", "1"})).code, kExitSuccess);
  const Finished again = train(with(words, {"--epochs", "2"}));
  EXPECT_EQ(again.code, kExitSuccess) << again.errors;
  EXPECT_THAT(again.output, HasSubstr("Going on from "));
  EXPECT_EQ(page_lines(again.output, "^Train Epoch"),
            std::vector<std::string>{"Train Epoch: 2 [0/320 (0%)]\tLoss: #"});
}

TEST_F(RecipesTest, ARecipeLeavesTheRunOfAnotherOneAlone) {
  EXPECT_EQ(train({"sine", "--epochs", "1", "--checkpoint-every", "1", "--run-dir", run_folder()}).code,
            kExitSuccess);
  const auto configuration = [&] {
    std::stringstream text;
    text << std::ifstream(folder_.path() / "run/config.json").rdbuf();
    return text.str();
  };
  const std::string before = configuration();
  EXPECT_THAT(before, HasSubstr("\"run_name\": \"sine\""));
  const Finished other = train(with(kSmallMnist, {"--run-dir", run_folder()}));
  EXPECT_EQ(configuration(), before);
  EXPECT_EQ(other.code, kExitUsage);
  EXPECT_THAT(
      other.errors,
      ContainsRegex("^\\[rank 0 [^]]*\\] \\[train\\] the checkpoint '[^']*/step-[0-9]+' is of "
                    "another model; resume with the one that saved it, or train in another folder:\n"));
  EXPECT_THAT(other.errors, Not(HasSubstr("rank 1"))) << "said once";
}

TEST_F(RecipesTest, AnEpochThatWasInterruptedIsCountedOn) {
  const auto words =
      with(kSmallMnist, {"--run-dir", run_folder(), "--log-interval", "1", "--epochs", "1000"});
  Process first = start(words);
  while (const auto line = first.read_line(seconds(120))) {
    if (line->starts_with("Train Epoch: 1 [64/")) break;
  }
  first.signal(SIGTERM);
  const Finished left = finish(first);
  EXPECT_EQ(left.code, kExitPreempted) << left.errors;
  const std::vector<std::string> before = page_lines(left.output, "^Train Epoch");
  ASSERT_FALSE(before.empty());
  std::smatch match;
  ASSERT_TRUE(std::regex_search(before.back(), match, std::regex("Epoch: ([0-9]+) \\[([0-9]+)/")));
  const int epoch = std::stoi(match[1]);
  const int seen = std::stoi(match[2]);

  const Finished again = train(with(words, {"--epochs", std::to_string(epoch + 1)}));
  EXPECT_EQ(again.code, kExitSuccess) << again.errors;
  const bool was_last = seen == 256;
  EXPECT_THAT(page_lines(again.output, "^Train Epoch").front(),
              HasSubstr(was_last ? fmt::format("Epoch: {} [0/", epoch + 1)
                                 : fmt::format("Epoch: {} [{}/", epoch, seen + 64)));
}

TEST_F(RecipesTest, AFileSetsTheRecipesOwnOptionsToo) {
  std::ofstream(folder_.path() / "run.toml") << "epochs = 1\nlog_interval = 4\nlr = 0.5\n";
  const Finished run = train(with(kSmallMnist, {"--config", "run.toml", "--run-dir", run_folder()}));
  EXPECT_EQ(run.code, kExitSuccess) << run.errors;
  EXPECT_EQ(page_lines(run.output, "^Train Epoch").size(), 2u);
  std::ifstream config(folder_.path() / "run/config.json");
  std::stringstream text;
  text << config.rdbuf();
  EXPECT_THAT(text.str(), HasSubstr("\"lr\": 0.5")) << "what the run was made with is in its folder";
}

TEST_F(RecipesTest, MissingDataAreAnErrorThatListsWhereTheyWereLookedFor) {
  const Finished nowhere = train({"mnist", "--data", "/nowhere/at-all"});
  EXPECT_EQ(nowhere.code, kExitUsage);
  EXPECT_THAT(nowhere.errors, HasSubstr("/nowhere/at-all"));
  const Finished usual = train({"cifar100"});
  EXPECT_EQ(usual.code, kExitUsage);
  EXPECT_THAT(usual.errors, AllOf(HasSubstr("data"), HasSubstr("cifar-100-binary"), HasSubstr("--data")));
}

TEST_F(RecipesTest, TheVariableOfTheDataMeansWhatTheFlagMeans) {
  const std::vector<std::string> words = {"mnist", "--max-samples", "64", "--dry-run", "--epochs", "1"};
  Process made_up = start(words, "synthetic");
  EXPECT_EQ(finish(made_up).code, kExitSuccess) << made_up.errors();
  Process nowhere = start(words, "/nowhere/at-all");
  EXPECT_EQ(finish(nowhere).code, kExitUsage);
  EXPECT_THAT(nowhere.errors(), AllOf(HasSubstr("/nowhere/at-all"), Not(HasSubstr(".cache"))));
  Process flag = start(with(words, {"--data", "synthetic"}), "/nowhere/at-all");
  EXPECT_EQ(finish(flag).code, kExitSuccess) << flag.errors();
}

TEST_F(RecipesTest, WhatIsWrongWithTheDataIsSaidOnceForAllRanks) {
  for (const std::string recipe : {"mnist", "cifar100", "vit"}) {
    const Finished run = train({recipe, "--data", "/nowhere/at-all", "--nprocs", "3", "--batch-size", "3"});
    EXPECT_EQ(run.code, kExitUsage) << recipe;
    EXPECT_THAT(run.errors, ContainsRegex("^\\[rank 0 [^]]*\\] \\[images\\] the training part of "));
    EXPECT_THAT(run.errors, AllOf(Not(HasSubstr("rank 1")), Not(HasSubstr("rank 2")))) << recipe;
    EXPECT_EQ(page_lines(run.errors, "training part").size(), 1u) << run.errors;
  }
}

TEST_F(RecipesTest, WhatIsWrongWithTheModelIsSaidOnceForAllRanks) {
  const std::vector<std::string> words = {"vit",  "--data",   "synthetic", "--max-samples", "10", "--model",
                                          "tiny", "--nprocs", "3"};
  const Finished weights = train(with(words, {"--weights", "/nowhere.pt"}));
  EXPECT_EQ(weights.code, kExitUsage);
  EXPECT_THAT(
      weights.errors,
      ContainsRegex("^\\[rank 0 [^]]*\\] \\[interop\\] there is no checkpoint or file '/nowhere.pt': give "));
  EXPECT_EQ(lines_of(weights.errors).size(), 1u) << weights.errors;
  const Finished size = train(with(words, {"--image-size", "33"}));
  EXPECT_EQ(size.code, kExitUsage);
  EXPECT_EQ(lines_of(size.errors).size(), 1u) << size.errors;
}

// The Wide ResNet is large for a test: few images, few steps.
const std::vector<std::string> kSmallCifar = {
    "cifar100", "--data",   "synthetic", "--max-samples",     "8", "--batch-size", "4", "--max-batches",
    "1",        "--nprocs", "2",         "--test-batch-size", "4"};

TEST_F(RecipesTest, CifarPrintsSigma2sLinesAndStopsAtTheTarget) {
  const Finished run = train(with(kSmallCifar, {"--epochs", "4", "--target-accuracy", "0", "--patience", "2",
                                                "--run-dir", run_folder()}));
  EXPECT_EQ(run.code, kExitSuccess) << run.errors;
  EXPECT_EQ(run.errors, "");
  std::string pages;
  for (const std::string& line : lines_of(run.output)) {
    const bool trainers = line.starts_with("Training on ") || line.starts_with("  ") ||
                          line.starts_with("Trained ") || line.starts_with("Run folder: ") ||
                          line.starts_with("Report: ");
    if (!trainers) pages += std::regex_replace(line, std::regex(R"(\d+\.\d{3,})"), "#") + "\n";
  }
  EXPECT_EQ(pages,
            "Training started with 2 processes across 1 nodes.\n"
            "Using 0 GPUs per node.\n"
            "Epoch 1/4 completed in # seconds\n"
            "Validation Loss: #, Validation Accuracy: #\n"
            "Epoch Throughput: # images/second\n"
            "Epoch 2/4 completed in # seconds\n"
            "Validation Loss: #, Validation Accuracy: #\n"
            "Epoch Throughput: # images/second\n"
            "Target accuracy reached. Early stopping after epoch 2.\n"
            "\n"
            "Training Summary:\n"
            "Total training time: # seconds\n"
            "Throughput: # images/second\n"
            "Number of nodes: 1\n"
            "Number of GPUs per node: 0\n"
            "Total GPUs used: 0\n"
            "Training completed successfully.\n");
  EXPECT_THAT(run.output, ContainsRegex("Validation Loss: [0-9]+\\.[0-9]{4}, Validation Accuracy: "
                                        "[01]\\.[0-9]{4}\n"));
  EXPECT_FALSE(std::filesystem::exists(folder_.path() / "run/gpu.csv")) << "no GPU was used";
}

TEST_F(RecipesTest, CifarsThroughputIsOfTheImagesThatWereTrainedOn) {
  const Finished run =
      train(with(kSmallCifar, {"--epochs", "1", "--patience", "0", "--run-dir", run_folder()}));
  EXPECT_EQ(run.code, kExitSuccess) << run.errors;
  EXPECT_THAT(run.output, HasSubstr("Early stopping is off: patience is 0.\n"));
  std::smatch time;
  std::smatch speed;
  ASSERT_TRUE(std::regex_search(run.output, time, std::regex("Total training time: ([0-9.]+) seconds")));
  ASSERT_TRUE(std::regex_search(run.output, speed, std::regex("\nThroughput: ([0-9.]+) images/second")));
  const double images = std::stod(time[1]) * std::stod(speed[1]);
  EXPECT_NEAR(images, 4, 0.05) << "one batch of four over both ranks";
}

double number_after(const std::string& text, const std::string& words) {
  std::smatch match;
  const bool found = std::regex_search(text, match, std::regex(words + "([0-9.]+)"));
  EXPECT_TRUE(found) << words << " is not in: " << text;
  return found ? std::stod(match[1]) : 0;
}

TEST_F(RecipesTest, CifarsTimeAndThroughputAreThoseOfTheWholeRunThatWasInterrupted) {
  constexpr int kImages = 48;  // twelve steps an epoch
  const std::vector<std::string> words = {"cifar100",
                                          "--data",
                                          "synthetic",
                                          "--max-samples",
                                          std::to_string(kImages),
                                          "--nprocs",
                                          "2",
                                          "--batch-size",
                                          "4",
                                          "--val-every",
                                          "0",
                                          "--patience",
                                          "0",
                                          "--run-dir",
                                          run_folder(),
                                          "--checkpoint-every-steps",
                                          "2"};
  Process first = start(with(words, {"--epochs", "1000"}));
  // In the middle of the first epoch, where a process is not stopped for ten steps.
  const auto deadline = std::chrono::steady_clock::now() + seconds(240);
  while (!std::filesystem::exists(folder_.path() / "run/checkpoints/latest") &&
         std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  first.signal(SIGTERM);
  const Finished left = finish(first);
  EXPECT_EQ(left.code, kExitPreempted) << left.errors;
  EXPECT_THAT(left.output, Not(HasSubstr("Training Summary")));

  const size_t done = page_lines(left.output, "^Epoch [0-9]+/1000 completed").size();
  const Finished again = train(with(words, {"--epochs", std::to_string(done + 1)}));
  EXPECT_EQ(again.code, kExitSuccess) << again.errors;
  EXPECT_THAT(again.output, HasSubstr(fmt::format("{} of {} epochs are done", done, done + 1)));
  const double time = number_after(again.output, "Total training time: ");
  const double speed = number_after(again.output, "\nThroughput: ");
  EXPECT_NEAR(time * speed, static_cast<double>(kImages * (done + 1)), 0.1)
      << "every image of every epoch, once";
  const double epoch_time = number_after(again.output, "completed in ");
  const double epoch_speed = number_after(again.output, "Epoch Throughput: ");
  EXPECT_NEAR(epoch_time * epoch_speed, kImages, 0.1) << "of the whole epoch, not of its rest";
}

TEST_F(RecipesTest, ABatchThatTheRanksDoNotDivideIsRefusedWithTheNumbers) {
  const Finished run = train(with(kSmallCifar, {"--batch-size", "5"}));
  EXPECT_EQ(run.code, kExitUsage);
  EXPECT_THAT(run.errors, HasSubstr("batch_size is over all ranks and must divide by them: 5 by 2 rank(s)"));
}

TEST_F(RecipesTest, VitPrintsLumisLinesAndSavesOnce) {
  const Finished run =
      train({"vit", "--data", "synthetic", "--model", "tiny", "--image-size", "32", "--max-samples", "9",
             "--batch-size", "2", "--epochs", "2", "--nprocs", "2", "--run-dir", run_folder()});
  EXPECT_EQ(run.code, kExitSuccess) << run.errors;
  EXPECT_EQ(run.errors, "");
  const std::string number = "[0-9]+\\.[0-9]+(e-[0-9]+)?";
  EXPECT_THAT(run.output, ContainsRegex("Epoch 1, Training Loss: " + number + "\nValidation Accuracy: " +
                                        number + "%\nEpoch 2, Training Loss: " + number +
                                        "\nValidation Accuracy: " + number + "%\n"));
  EXPECT_THAT(run.output, ContainsRegex("\nTime elapsed \\(s\\): " + number + "\n"));
  EXPECT_TRUE(std::filesystem::exists(folder_.path() / "run/vit_ti_16_imagenet.pth"));

  const Finished loaded = train({"vit", "--data", "synthetic", "--model", "tiny", "--image-size", "32",
                                 "--max-samples", "2", "--batch-size", "2", "--epochs", "1",
                                 "--no-save-model", "--weights", run_folder() + "/vit_ti_16_imagenet.pth"});
  EXPECT_EQ(loaded.code, kExitSuccess) << loaded.errors;
  const Finished other = train({"vit", "--data", "synthetic", "--model", "small", "--image-size", "32",
                                "--weights", run_folder() + "/vit_ti_16_imagenet.pth"});
  EXPECT_EQ(other.code, kExitUsage);
  EXPECT_THAT(other.errors, HasSubstr("vit_ti_16_imagenet.pth"));
}

// The configuration as the page prints it, commas included.
TEST_F(RecipesTest, LumisConfigurationDrivesVit) {
  std::ofstream(folder_.path() / "ds_config.json") << R"({
  "zero_optimization": {
    "stage": 1
  },

  "fp16": {
    "enabled": false,
  }
}
)";
  const std::vector<std::string> words = {
      "vit", "--data",       "synthetic", "--model",       "tiny", "--image-size",
      "32",  "--batch-size", "8",         "--max-batches", "3",    "--epochs",
      "1",   "--nprocs",     "2",         "--max-samples", "60"};
  std::vector<std::string> by_file = words;
  by_file.insert(by_file.end(),
                 {"--deepspeed", "--deepspeed_config", "ds_config.json", "--run-dir", "by_file"});
  const Finished outcome = train(by_file);
  EXPECT_EQ(outcome.code, 0) << outcome.errors;
  std::vector<std::string> by_flags = words;
  by_flags.insert(by_flags.end(), {"--zero-stage", "1", "--clip-grad-norm", "1", "--run-dir", "by_flags"});
  const Finished same = train(by_flags);
  EXPECT_EQ(same.code, 0) << same.errors;
  const auto loss_line = [](const Finished& of) {
    for (const std::string& line : lines_of(of.output)) {
      if (line.find("Training Loss") != std::string::npos) return line;
    }
    return std::string("none");
  };
  EXPECT_NE(loss_line(outcome), "none") << outcome.output;
  EXPECT_EQ(loss_line(outcome), loss_line(same));
}

TEST_F(RecipesTest, SineIsTheExample) {
  const Finished recipe = train({"sine", "--nprocs", "2", "--run-dir", run_folder()});
  EXPECT_EQ(recipe.code, kExitSuccess) << recipe.errors;
  Process example({program_path("sine"), "--nprocs", "2", "--run-dir", run_folder() + "-example"},
                  {{"LOCKSTEP_COMPUTE_SETUP", "cpu"}, {"OMP_NUM_THREADS", std::nullopt}});
  EXPECT_EQ(finish(example).code, kExitSuccess);
  const auto lines = [](const std::string& output) {
    std::vector<std::string> kept;
    for (const std::string& line : lines_of(output)) {
      if (line.starts_with("P  0|")) kept.push_back(line);
    }
    return kept;
  };
  EXPECT_EQ(lines(recipe.output).size(), 10u);
  EXPECT_EQ(lines(recipe.output), lines(example.output())) << "to the last digit";
}

}  // namespace
}  // namespace lockstep::test
