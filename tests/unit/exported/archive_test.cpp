#include "exported/archive.h"

#include <ATen/autocast_mode.h>
#include <caffe2/serialize/inline_container.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/error.h>
#include <lockstep/exported_model.h>
#include <torch/torch.h>

#include <map>

#include "support/formula.h"
#include "support/golden.h"
#include "support/temporary_folder.h"

namespace lockstep::exported {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

const std::string kWeights = "data/weights/model_weights_config.json";
const std::string kConstants = "data/constants/model_constants_config.json";
const std::string kProgram = "models/model.json";

using ArchiveRecords = std::map<std::string, std::string>;

ArchiveRecords records_of(const std::string& file) {
  caffe2::serialize::PyTorchStreamReader reader(file);
  ArchiveRecords records;
  for (const std::string& name : reader.getAllRecords()) {
    const auto [memory, bytes] = reader.getRecord(name);
    records[name] = std::string(static_cast<const char*>(memory.get()), bytes);
  }
  return records;
}

// A file with these records, for the life of this object.
class ArchiveFile {
 public:
  explicit ArchiveFile(const ArchiveRecords& records) {
    caffe2::serialize::PyTorchStreamWriter writer(path().string());
    for (const auto& [name, content] : records) {
      if (name != caffe2::serialize::kSerializationIdRecordName) {
        writer.writeRecord(name, content.data(), content.size());
      }
    }
    writer.writeEndOfFile();
  }
  // A golden file with the first occurrence of a text in a record replaced.
  ArchiveFile(const std::string& golden, const std::string& record, const std::string& old,
              const std::string& replacement)
      : ArchiveFile(edited(golden, record, old, replacement)) {}

  std::filesystem::path path() const { return folder_.path() / "edited.pt2"; }

 private:
  static ArchiveRecords edited(const std::string& golden, const std::string& record, const std::string& old,
                               const std::string& replacement) {
    ArchiveRecords records = records_of(test::exported_file(golden));
    std::string& text = records.at(record);
    const size_t at = text.find(old);
    EXPECT_NE(at, std::string::npos) << old;
    if (at != std::string::npos) text.replace(at, old.size(), replacement);
    return records;
  }

  test::TemporaryFolder folder_;
};

void expect_archive_refused(const ArchiveFile& file, const std::string& reason) {
  EXPECT_THAT([&] { ExportedModel model(file.path()); },
              ThrowsMessage<ConfigError>(EndsWith("': " + reason)));
}

TEST(ExportedArchiveTest, NamesWhatIsWrongWithItsTensors) {
  expect_archive_refused({"net", kWeights, "\"path_name\": \"weight_0\"", "\"path_name\": \"weight_77\""},
                         "its record 'data/weights/weight_77' is missing");
  expect_archive_refused({"net", kWeights, "\"head.weight\"", "\"tail.weight\""},
                         "it has no tensor 'head.weight'");
  expect_archive_refused({"net", kWeights, "\"use_pickle\": false", "\"use_pickle\": true"},
                         "'layers.0.weight' is an object of Python or a subclass of a tensor");
  expect_archive_refused({"net", kWeights, "\"dtype\": 7", "\"dtype\": 4"},
                         "its tensor 'layers.0.weight' has dtype Int, and its program has Float");
  expect_archive_refused({"net", kWeights, "\"dtype\": 7", "\"dtype\": 99"},
                         "it has tensors of the unknown dtype 99");
  expect_archive_refused(
      {"net", kWeights, "[{\"as_int\": 4}, {\"as_int\": 3}]", "[{\"as_int\": 3}, {\"as_int\": 3}]"},
      "its tensor 'layers.0.weight' has the shape [3, 3], and its program has another one");
  expect_archive_refused(
      {"net", kWeights, "[{\"as_int\": 4}, {\"as_int\": 3}]", "[{\"as_int\": 9}, {\"as_int\": 3}]"},
      "a tensor reaches to byte 108 of its record of 48");
  expect_archive_refused({"net", kWeights, "[{\"as_int\": 4}, {\"as_int\": 3}]",
                          "[{\"as_int\": 9223372036854775807}, {\"as_int\": 9223372036854775807}]"},
                         "the sizes of a tensor of it overflow");
  expect_archive_refused(
      {"net", kWeights, "[{\"as_int\": 4}, {\"as_int\": 3}]", "[{\"as_int\": -4}, {\"as_int\": 3}]"},
      "a tensor of it has no fixed size");
  expect_archive_refused({"net", kWeights, "[{\"as_int\": 4}, {\"as_int\": 3}]", "[{\"as_int\": 4}]"},
                         "a tensor of it has sizes and strides that do not fit each other");
  expect_archive_refused({"net", kWeights, "\"layout\": 7", "\"layout\": 1"},
                         "a tensor of it is not strided");
  expect_archive_refused({"pair", kWeights, "\"dtype\": 7", "\"dtype\": 4"},
                         "its record 'data/weights/weight_0' has two dtypes");
  expect_archive_refused({"pair", kConstants, "\"shift\"", "\"lift\""}, "it has no tensor 'shift'");
}

// Threads read parts of the file, which begin and end within records.
TEST(ExportedArchiveTest, ReadsAllBytesOfLargeRecords) {
  constexpr size_t kBytes = 9'000'004;
  ArchiveRecords records = records_of(test::exported_file("net"));
  std::string& large = records.at("data/weights/weight_0");
  while (large.size() < kBytes) large.push_back(static_cast<char>(large.size() % 251));
  const ArchiveFile file(records);
  const int threads_before = at::get_num_threads();
  for (const int threads : {1, 3}) {
    SCOPED_TRACE(threads);
    at::set_num_threads(threads);
    for (const Payload& payload : read_archive(file.path()).weights) {
      const c10::Storage& memory = payload.tensor.storage();
      EXPECT_TRUE(std::string_view(static_cast<const char*>(memory.data()), memory.nbytes()) ==
                  records.at(payload.record))
          << payload.name;
    }
  }
  at::set_num_threads(threads_before);
}

TEST(ExportedArchiveTest, ReadsATensorThatWasExpanded) {
  ArchiveRecords records = records_of(test::exported_file("pair"));
  // Both records of the file say that "shift" has as many elements as it could not store.
  const auto replace = [&](const std::string& record, const std::string& after, const std::string& old,
                           const std::string& replacement) {
    std::string& text = records.at(record);
    const size_t at = text.find(old, text.find(after));
    ASSERT_NE(at, std::string::npos);
    text.replace(at, old.size(), replacement);
  };
  replace(kConstants, "\"shift\"", "\"sizes\": [{\"as_int\": 1}]", "\"sizes\": [{\"as_int\": 1000000}]");
  replace(kConstants, "\"shift\"", "\"strides\": [{\"as_int\": 1}]", "\"strides\": [{\"as_int\": 0}]");
  const std::string meta = "\"c_shift\": {\"dtype\": 7, \"sizes\": [{\"as_int\": 1";
  replace(kProgram, "", meta, meta + "000000");
  const ArchiveFile file(records);
  const Archive archive = read_archive(file.path());
  ASSERT_EQ(archive.constants[0].name, "shift");
  EXPECT_EQ(archive.constants[0].tensor.numel(), 1000000);
  EXPECT_EQ(archive.constants[0].tensor.sum().item<float>(), 1e6F);
  EXPECT_NO_THROW(ExportedModel model(file.path()));
}

TEST(ExportedArchiveTest, RefusesOlderFormats) {
  expect_archive_refused(
      ArchiveFile(ArchiveRecords{{"serialized_exported_program.json", "{}"}, {"version", "8.7"}}),
      "it has the format of PyTorch before 2.8: export the model again with PyTorch 2.11 to 2.15");
  ArchiveRecords records = records_of(test::exported_file("net"));
  records["data/weights/model.pt"] = "";
  expect_archive_refused(
      ArchiveFile(records),
      "its weights have an older format: export the model again with PyTorch 2.11 to 2.15");
  records = records_of(test::exported_file("net"));
  records["byteorder"] = "big";
  expect_archive_refused(ArchiveFile(records), "its numbers are not little-endian");
}

TEST(ExportedArchiveTest, NamesTheChildrenOfOutputsByTheirContext) {
  const std::string dict = R"(\"builtins.dict\", \"context\": \"[\\\"sum\\\", \\\"more\\\", \\\"rows\\\"]\")";
  const auto names = [&](const std::string& replacement) {
    const ArchiveFile file("pair", kProgram, dict, replacement);
    return ExportedModel(file.path())->output_names();
  };
  using ::testing::ElementsAre;
  EXPECT_THAT(names(R"(\"a.Output\", \"context\": \"[\\\"loss\\\", \\\"logits\\\", \\\"rows\\\"]\")"),
              ElementsAre("loss", "logits.0", "logits.1", "rows"));
  EXPECT_THAT(names(R"(\"a.Data\", \"context\": \"[[\\\"x\\\", \\\"y\\\", \\\"z\\\"], [\\\"none\\\"]]\")"),
              ElementsAre("x", "y.0", "y.1", "z"));
  EXPECT_THAT(names(R"(\"collections.defaultdict\", \"context\": {\"dict_context\": [\"u\", \"v\", \"w\"]})"),
              ElementsAre("u", "v.0", "v.1", "w"));
  EXPECT_THAT(names(R"(\"collections.namedtuple\", \"context\": \"a.Point\")"),
              ElementsAre("0", "1.0", "1.1", "2"));
}

TEST(ExportedArchiveTest, AnAutocastRegionKeepsItsDevice) {
  const std::string cpu = "\"as_string\": \"cpu\"";
  const std::vector<c10::IValue> inputs = {test::formula({5, 3}, 0), torch::arange(10.), torch::tensor(0.5F)};
  const ArchiveFile other("pair", kProgram, cpu, "\"as_string\": \"cuda\"");
  EXPECT_EQ(ExportedModel(test::exported_file("pair"))->run(inputs)[2].toTensor().scalar_type(),
            torch::kBFloat16);
  EXPECT_EQ(ExportedModel(other.path())->run(inputs)[2].toTensor().scalar_type(), torch::kFloat32);
  expect_archive_refused({"pair", kProgram, cpu, "\"as_string\": \"abacus\""},
                         "its operator torch.ops.higher_order.wrap_with_autocast: this LibTorch has no "
                         "autocast for 'abacus'");
}

TEST(ExportedArchiveTest, AnAutocastRegionWithoutACacheOptionKeepsThePresentOne) {
  const ArchiveFile file(
      "pair", kProgram,
      R"({"name": "", "arg": {"as_bool": true}, "kind": 1}, {"name": "", "arg": {"as_bool": false})",
      R"({"name": "", "arg": {"as_bool": true}, "kind": 1}, {"name": "", "arg": {"as_none": true})");
  ExportedModel model(file.path());
  const std::vector<c10::IValue> inputs = {test::formula({5, 3}, 0), torch::arange(10.), torch::tensor(0.5F)};
  // Inside of another region the cache outlives this one: a weight that changes is not converted again.
  const auto changes = [&](bool caches) {
    at::autocast::increment_nesting();
    at::autocast::set_autocast_cache_enabled(caches);
    const at::Tensor before = model->run(inputs)[2].toTensor();
    const bool still = at::autocast::is_autocast_cache_enabled() == caches;
    {
      const torch::NoGradGuard guard;
      model->parameters()[0].add_(1);
    }
    const at::Tensor after = model->run(inputs)[2].toTensor();
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
    at::autocast::set_autocast_cache_enabled(true);
    EXPECT_TRUE(still);
    return !torch::equal(before, after);
  };
  EXPECT_TRUE(changes(/*caches=*/false));
  EXPECT_FALSE(changes(/*caches=*/true));
}

TEST(ExportedArchiveTest, ARegionWithoutAutocastIsSoOnEveryDevice) {
  ArchiveRecords records = records_of(test::exported_file("pair"));
  std::string& text = records.at(kProgram);
  const std::string options =
      R"("as_string": "cpu"}, "kind": 1}, {"name": "", "arg": {"as_scalar_type": 13}, )"
      R"("kind": 1}, {"name": "", "arg": {"as_bool": true})";
  const size_t at = text.find(options);
  ASSERT_NE(at, std::string::npos);
  text.replace(at, options.size(),
               R"("as_string": "cuda"}, "kind": 1}, {"name": "", "arg": {"as_scalar_type": 13}, )"
               R"("kind": 1}, {"name": "", "arg": {"as_bool": false})");
  const ArchiveFile file(records);
  ExportedModel model(file.path());
  at::autocast::set_autocast_enabled(at::kCPU, true);
  const auto outputs = model->run({test::formula({5, 3}, 0), torch::arange(10.), torch::tensor(0.5F)});
  at::autocast::clear_cache();
  at::autocast::set_autocast_enabled(at::kCPU, false);
  EXPECT_EQ(outputs[2].toTensor().scalar_type(), torch::kFloat32);
}

}  // namespace
}  // namespace lockstep::exported
