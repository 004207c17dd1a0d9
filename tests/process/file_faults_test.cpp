// Programs as users run them, while the disk fails: at each file operation in turn there is no
// space, the file system is read-only, an input/output error comes, a signal interrupts, or a write
// takes long. The program goes on or ends with one sentence, and leaves no broken file.
//
// Here each kind of operation on each file fails once. With LOCKSTEP_FILE_FAULTS=all, which
// script/test --faults sets, every operation fails in every way.

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/error.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <regex>
#include <sstream>

#include "checkpoint/catalog.h"
#include "checkpoint/safetensors.h"
#include "support/process.h"
#include "support/temporary_folder.h"
#include "track/tfrecord.h"

namespace lockstep::test {
namespace {

namespace fs = std::filesystem;
using std::chrono::seconds;

struct DiskFault {
  const char* name;  // as fail_file_call calls it
  int error;         // 0: nothing fails
  bool is_harmless;  // the program must end as if nothing had been
};

constexpr std::array kDiskFaults = {DiskFault{"enospc", ENOSPC, false}, DiskFault{"eio", EIO, false},
                                    DiskFault{"erofs", EROFS, false}, DiskFault{"eintr", EINTR, true},
                                    DiskFault{"stuck", 0, true}};

// One operation, counted among those that this fault can meet.
struct FaultPoint {
  DiskFault fault;
  int64_t number = -1;
  std::string operation = {};  // "pwrite run/metrics.csv"
};

std::string bytes_in(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::vector<std::string> lines_in(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

bool is_whole_csv(const std::string& text) {
  const std::vector<std::string> lines = lines_in(text);
  const auto commas = [](const std::string& line) { return std::count(line.begin(), line.end(), ','); };
  return text.empty() ||
         (text.ends_with('\n') && std::all_of(lines.begin(), lines.end(), [&](const auto& line) {
            return commas(line) == commas(lines[0]);
          }));
}

bool is_whole_jsonl(const std::string& text) {
  const std::vector<std::string> lines = lines_in(text);
  return text.empty() ||
         (text.ends_with('\n') && std::all_of(lines.begin(), lines.end(),
                                              [](const auto& line) { return nlohmann::json::accept(line); }));
}

// Records of TensorBoard: length, its checksum, bytes, their checksum.
bool is_whole_event_file(const std::string& bytes) {
  const auto number = [&](size_t at) {
    uint32_t value = 0;
    std::memcpy(&value, bytes.data() + at, sizeof(value));
    return value;
  };
  for (size_t at = 0; at < bytes.size();) {
    if (bytes.size() - at < 16) return false;
    uint64_t length = 0;
    std::memcpy(&length, bytes.data() + at, sizeof(length));
    if (length > bytes.size() - at - 16) return false;
    if (track::masked_crc32c(std::string_view(bytes).substr(at, 8)) != number(at + 8) ||
        track::masked_crc32c(std::string_view(bytes).substr(at + 12, length)) != number(at + 12 + length)) {
      return false;
    }
    at += 16 + length;
  }
  return true;
}

bool is_whole_safetensors(const fs::path& path) {
  try {
    checkpoint::SafetensorsFile file(path);
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

// Every file that readers look for. Temporary ones may be cut: nobody reads them.
void expect_whole_files(const fs::path& folder) {
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    const std::string name = entry.path().filename(),
                      bytes = entry.is_regular_file() ? bytes_in(entry.path()) : "";
    if (!entry.is_regular_file() || name.ends_with(".tmp")) continue;
    bool is_whole = true;
    if (name.ends_with(".csv")) is_whole = is_whole_csv(bytes);
    if (name.ends_with(".jsonl")) is_whole = is_whole_jsonl(bytes);
    if (name.ends_with(".html")) is_whole = bytes.ends_with("</html>\n");
    if (name.find("tfevents") != std::string::npos) is_whole = is_whole_event_file(bytes);
    if (entry.path().parent_path().filename().string().starts_with("step-")) continue;  // below
    if (name.ends_with(".json")) is_whole = nlohmann::json::accept(bytes);
    if (name.ends_with(".safetensors")) is_whole = is_whole_safetensors(entry.path());
    EXPECT_TRUE(is_whole) << entry.path() << ": " << bytes.substr(0, 2000);
  }
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (entry.path().filename() != "checkpoints") continue;
    for (const checkpoint::Entry& saved : checkpoint::list(entry.path())) {
      EXPECT_TRUE(saved.valid()) << saved.path << ": " << saved.problem;
    }
  }
}

class FileFaultsTest : public testing::Test {
 protected:
  using Command = std::function<std::vector<std::string>(const fs::path& folder)>;
  using Check = std::function<void(const fs::path& folder)>;

  // A program that changes files in a folder.
  struct Scenario {
    Command command;
    Check prepare = [](const fs::path&) {};
    Check check = [](const fs::path&) {};  // when it has ended, whatever its status
    int code = kExitSuccess;               // of the program when nothing fails
    bool reads_only = false;               // where another scenario has the other operations
  };

  struct Run {
    Finished finished;
    std::vector<std::string> operations;
  };

  Run run(const fs::path& folder, const std::vector<std::string>& command, const char* fault,
          int64_t number) const {
    const fs::path result = folder_.path() / "operations";
    std::vector<std::string> all = {program_path("test/fail_file_call"), folder, fault,
                                    std::to_string(number), result};
    all.insert(all.end(), command.begin(), command.end());
    Process process(all, {{"OMP_NUM_THREADS", "1"}, {"LOCKSTEP_PROGRESS", "none"}});
    return {finish(process, seconds(120)), lines_in(bytes_in(result))};
  }

  fs::path fresh_folder(const Scenario& scenario) const {
    const fs::path folder = folder_.path() / "files";
    fs::remove_all(folder);
    fs::create_directory(folder);
    scenario.prepare(folder);
    return folder;
  }

  // The operation and the last name of the path, with every number the same.
  static std::string kind_of(const std::string& operation) {
    const std::string name =
        operation.substr(0, operation.find(' ') + 1) + fs::path(operation).filename().string();
    return std::regex_replace(name, std::regex("[0-9a-f]*[0-9][0-9a-f]*"), "#");
  }

  static bool is_read(const std::string& operation) {
    return operation.starts_with("read ") || operation.starts_with("pread ") ||
           operation.starts_with("getdents ") ||
           (operation.starts_with("open ") && operation.find("tmp") == std::string::npos);
  }

  // Each operation of each fault, or one of each kind of operation, with one fault after the other.
  std::vector<FaultPoint> points(const Scenario& scenario) const {
    std::vector<FaultPoint> all;
    std::map<std::string, std::vector<FaultPoint>> by_kind;
    for (const DiskFault& fault : kDiskFaults) {
      const fs::path folder = fresh_folder(scenario);
      const Run untouched = run(folder, scenario.command(folder), fault.name, -1);
      EXPECT_EQ(untouched.finished.code, scenario.code) << untouched.finished.errors;
      EXPECT_FALSE(untouched.operations.empty()) << "nothing is written";
      for (size_t i = 0; i < untouched.operations.size(); ++i) {
        if (scenario.reads_only && !is_read(untouched.operations[i])) continue;
        all.push_back({fault, static_cast<int64_t>(i), untouched.operations[i]});
        by_kind[kind_of(untouched.operations[i])].push_back(all.back());
      }
    }
    const char* wanted = std::getenv("LOCKSTEP_FILE_FAULTS");
    if (wanted != nullptr && std::string_view(wanted) == "all") return all;
    std::vector<FaultPoint> some;
    for (const auto& [kind, points] : by_kind) some.push_back(points[some.size() * 7 % points.size()]);
    return some;
  }

  void fail_everywhere(const Scenario& scenario) const {
    const std::vector<FaultPoint> all = points(scenario);
    for (const FaultPoint& point : all) {
      SCOPED_TRACE(fmt::format("{} at operation {}: {}", point.fault.name, point.number, point.operation));
      const fs::path folder = fresh_folder(scenario);
      const Run faulted = run(folder, scenario.command(folder), point.fault.name, point.number);
      expect_a_sentence(faulted.finished, scenario, point);
      expect_whole_files(folder);
      scenario.check(folder);
      if (HasFailure()) {
        ADD_FAILURE() << "status " << faulted.finished.code << "\n"
                      << faulted.finished.errors << "\n"
                      << fmt::format("{}", fmt::join(faulted.operations, "\n"));
        return;
      }
    }
    fmt::print("{} faults\n", all.size());
  }

  static void expect_a_sentence(const Finished& finished, const Scenario& scenario, const FaultPoint& point) {
    if (point.fault.is_harmless) {
      EXPECT_EQ(finished.code, scenario.code);
      return;
    }
    EXPECT_NE(finished.code, -1) << "ended by a signal, or not at all";
    EXPECT_NE(finished.code, kExitInternal);
    EXPECT_THAT(finished.errors, testing::Not(testing::HasSubstr("terminate called")));
    if (finished.code == scenario.code) return;
    int sentences = 0;
    for (const std::string& line : lines_in(finished.errors)) {
      const bool is_reason = line.find(std::strerror(point.fault.error)) != std::string::npos;
      sentences += is_reason && line.find("warning: ") == std::string::npos ? 1 : 0;
    }
    EXPECT_EQ(sentences, 1) << "one line says why it ended";
  }

  TemporaryFolder folder_{"/dev/shm"};
};

std::vector<std::string> faulted_training(const fs::path& run) {
  return {program_path("sine"), "--compute_setup",    "cpu", "--log_folder",      run, "--max_iter",    "3",
          "--log_model",        "--checkpoint_every", "1",   "--checkpoint_keep", "2", "--print_every", "0"};
}

// What was saved is resumed, and the weights are those of a training that nothing disturbed.
TEST_F(FileFaultsTest, ATrainingGoesOnOrSaysWhy) {
  const fs::path straight = folder_.path() / "straight";
  Process undisturbed(faulted_training(straight), {{"OMP_NUM_THREADS", "1"}});
  ASSERT_EQ(finish(undisturbed, seconds(120)).code, kExitSuccess);
  const std::string weights = bytes_in(straight / "model.safetensors");
  ASSERT_FALSE(weights.empty());
  fail_everywhere({.command = [](const fs::path& folder) { return faulted_training(folder / "run"); },
                   .check =
                       [&](const fs::path& folder) {
                         Process again(faulted_training(folder / "run"), {{"OMP_NUM_THREADS", "1"}});
                         const Finished finished = finish(again, seconds(120));
                         EXPECT_EQ(finished.code, kExitSuccess) << finished.errors;
                         EXPECT_EQ(bytes_in(folder / "run/model.safetensors"), weights);
                         expect_whole_files(folder);
                       }});
}

// A resumed training reads what the one before has left.
TEST_F(FileFaultsTest, AResumedTrainingGoesOnOrSaysWhy) {
  const fs::path before = folder_.path() / "before";
  std::vector<std::string> two_epochs = faulted_training(before);
  two_epochs.insert(two_epochs.end(), {"--max_iter", "2"});
  Process first(two_epochs, {{"OMP_NUM_THREADS", "1"}});
  ASSERT_EQ(finish(first, seconds(120)).code, kExitSuccess);
  fail_everywhere(
      {.command = [](const fs::path& folder) { return faulted_training(folder / "run"); },
       .prepare =
           [&](const fs::path& folder) { fs::copy(before, folder / "run", fs::copy_options::recursive); },
       .reads_only = true});
}

// The launcher's logs.
TEST_F(FileFaultsTest, ALauncherGoesOnOrSaysWhy) {
  fail_everywhere({.command = [](const fs::path& folder) -> std::vector<std::string> {
                     return {program_path("lockstep"),
                             "run",
                             "-n",
                             "2",
                             "--log-dir",
                             folder / "logs",
                             "-t",
                             "3",
                             "--no-python",
                             "sh",
                             "-c",
                             "echo out; echo err >&2; exit 3"};
                   },
                   .code = 3});
}

// A worker that fails, and tells the launcher why.
TEST_F(FileFaultsTest, AnErrorFileIsWrittenWholeOrNotAtAll) {
  fail_everywhere({.command = [](const fs::path& folder) -> std::vector<std::string> {
                     return {program_path("lockstep"),
                             "run",
                             "-n",
                             "1",
                             "--log-dir",
                             folder / "logs",
                             program_path("sine"),
                             "--compute_setup",
                             "cpu",
                             "--log_folder",
                             "/dev/null/run"};
                   },
                   .code = kExitUsage});
}

// On network and FUSE file systems signals interrupt also who looks into a folder.
TEST_F(FileFaultsTest, AnInterruptedListingIsRepeated) {
  const fs::path folder = folder_.path() / "files";
  fs::create_directory(folder);
  Process first(faulted_training(folder / "run"), {{"OMP_NUM_THREADS", "1"}});
  ASSERT_EQ(finish(first, seconds(120)).code, kExitSuccess);
  const std::vector<std::string> list = {program_path("lockstep"), "ckpt", "ls", folder / "run"};
  const Run untouched = run(folder, list, "eintr", -1);
  ASSERT_EQ(untouched.finished.code, kExitSuccess) << untouched.finished.errors;
  ASSERT_THAT(untouched.finished.output, testing::HasSubstr("latest"));
  ASSERT_THAT(untouched.operations, testing::Contains(testing::StartsWith("getdents ")));
  for (size_t i = 0; i < untouched.operations.size(); ++i) {
    const Run interrupted = run(folder, list, "eintr", static_cast<int64_t>(i));
    EXPECT_EQ(interrupted.finished.code, kExitSuccess) << interrupted.finished.errors;
    EXPECT_EQ(interrupted.finished.output, untouched.finished.output) << untouched.operations[i];
    EXPECT_EQ(interrupted.operations.at(i), "! " + untouched.operations[i]);
  }
}

TEST_F(FileFaultsTest, AReportIsWrittenWholeOrNotAtAll) {
  const fs::path before = folder_.path() / "before";
  Process first(faulted_training(before), {{"OMP_NUM_THREADS", "1"}});
  ASSERT_EQ(finish(first, seconds(120)).code, kExitSuccess);
  fail_everywhere(
      {.command = [](const fs::path& folder) -> std::vector<std::string> {
         return {program_path("lockstep"), "report", folder / "run"};
       },
       .prepare =
           [&](const fs::path& folder) {
             fs::copy(before, folder / "run", fs::copy_options::recursive);
             std::ofstream(folder / "run/report.html") << "old page</html>\n";
           },
       .check = [](const fs::path& folder) { EXPECT_TRUE(fs::exists(folder / "run/report.html")); }});
}

}  // namespace
}  // namespace lockstep::test
