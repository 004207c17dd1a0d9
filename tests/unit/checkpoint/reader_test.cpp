#include "checkpoint/reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/json.h>
#include <sys/stat.h>
#include <torch/torch.h>

#include "checkpoint/checksum.h"
#include "checkpoint/error.h"
#include "checkpoint/store.h"
#include "unit/checkpoint/folder.h"

namespace lockstep::checkpoint {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

const std::string kShard = shard_name(0, 1);

class ReaderTest : public testing::Test {
 protected:
  ReaderTest() : store_(folder_.path()) {
    for (const int64_t step : {1, 2}) {
      Snapshot snapshot{.step = step};
      snapshot.pieces.push_back(TensorPiece::whole("w", values_ * step));
      snapshot.pieces.push_back(TensorPiece::whole("b", at::full({3}, step, at::kLong)));
      path_ = store_.save(snapshot).path;
    }
  }

  std::filesystem::path shard() const { return path_ / kShard; }

  void flip(const std::filesystem::path& path, size_t place) {
    std::string bytes = read_text(path);
    bytes.at(place) ^= 1;
    write_text(path, bytes);
  }

  // Reading is an error with the file and the reason; newest_valid() takes the previous checkpoint.
  void expect_broken(const std::filesystem::path& file, const char* reason) {
    EXPECT_THAT([&] { Reader(path_).verify(); },
                ThrowsMessage<CheckpointError>(AllOf(HasSubstr(file.string()), HasSubstr(reason))));
    testing::internal::CaptureStderr();
    const auto found = newest_valid(folder_.path());
    EXPECT_THAT(testing::internal::GetCapturedStderr(), AllOf(HasSubstr(file.string()), HasSubstr(reason)));
    ASSERT_TRUE(found.has_value());
    EXPECT_EQ(found->step, 1);
    EXPECT_TRUE(at::equal(Reader(found->path).read("w"), values_));
  }

  // With the right checksum, so that the content is parsed.
  void change_manifest(const std::function<void(Json&)>& change) {
    Json manifest = Json::parse(read_text(path_ / kManifestName));
    manifest.erase("checksum");
    change(manifest);
    const std::string rest = manifest.dump().substr(1);
    write_text(path_ / kManifestName, "{\"checksum\":\"" + checksum_of(rest) + "\"," + rest);
  }

  Folder folder_;
  at::Tensor values_ = at::arange(1000, at::kFloat).view({10, 100});
  Store store_;
  std::filesystem::path path_;
};

TEST_F(ReaderTest, ReadsRangesAndCountsTheirBytesOnly) {
  const Reader reader(path_);
  const int64_t manifest_bytes = reader.bytes_read();
  EXPECT_EQ(manifest_bytes, static_cast<int64_t>(std::filesystem::file_size(path_ / kManifestName)));
  const at::Tensor out = at::zeros({7});
  reader.read_range("w", 95, 7, out);
  EXPECT_TRUE(at::equal(out, values_.view({-1}).narrow(0, 95, 7) * 2));
  EXPECT_EQ(reader.bytes_read() - manifest_bytes, 7 * 4);
}

TEST_F(ReaderTest, ReadsIntoTensorsOfAnyForm) {
  const Reader reader(path_);
  const at::Tensor parameter = at::zeros({10, 100}).requires_grad_();
  const at::Tensor strided = at::zeros({100, 10}).t();
  const at::Tensor bias = at::zeros({3}, at::kLong);
  reader.read({{.name = "w", .out = parameter}, {.name = "w", .out = strided}, {.name = "b", .out = bias}},
              3);
  EXPECT_TRUE(at::equal(parameter, values_ * 2));
  EXPECT_TRUE(at::equal(strided, values_ * 2));
  EXPECT_TRUE(at::equal(bias, at::full({3}, 2, at::kLong)));
}

// Shards, which are safetensors, hold the numbers in pairs.
TEST_F(ReaderTest, Complex128IsReadAsItWasSaved) {
  const at::Tensor values = at::complex(at::rand({2, 3}, at::kDouble), at::rand({2, 3}, at::kDouble));
  Snapshot snapshot{.step = 3};
  snapshot.pieces.push_back(TensorPiece::whole("phase", values.conj()));
  const Reader reader(store_.save(snapshot).path);
  reader.verify();
  EXPECT_EQ(reader.entry("phase").dtype, at::kComplexDouble);
  EXPECT_TRUE(at::equal(reader.read("phase"), values.conj().resolve_conj()));
  const at::Tensor part = at::empty({2}, at::kComplexDouble);
  reader.read({{.name = "phase", .out = part, .first_element = 3}});
  EXPECT_TRUE(at::equal(part, values.conj().resolve_conj().flatten().narrow(0, 3, 2)));
}

TEST_F(ReaderTest, ATensorOverSeveralShardsIsReadAcrossThem) {
  Draft draft = store_.begin(9, 0);
  const at::Tensor flat = values_.view({-1});
  std::vector<ShardIndex> shards;
  for (int rank = 0; rank < 4; ++rank) {
    shards.push_back(
        write_shard(real_files(), draft.folder(), rank, 4,
                    {TensorPiece::part("w", flat.narrow(0, rank * 250, 250), {10, 100}, rank * 250)}));
  }
  const Entry entry = store_.publish(std::move(draft), shards, {.step = 9, .world_size = 4});
  const Reader reader(entry.path);
  reader.verify();
  for (const auto& [first, count] :
       {std::pair(0, 1000), std::pair(249, 2), std::pair(300, 600), std::pair(5, 0)}) {
    const int64_t before = reader.bytes_read();
    const at::Tensor out = at::empty({count});
    reader.read_range("w", first, count, out);
    EXPECT_TRUE(at::equal(out, flat.narrow(0, first, count)));
    EXPECT_EQ(reader.bytes_read() - before, count * 4);
  }
}

TEST_F(ReaderTest, WhatDoesNotFitIsRefused) {
  const Reader reader(path_);
  EXPECT_THAT([&] { reader.read("nothing"); }, ThrowsMessage<ConfigError>(HasSubstr("no tensor 'nothing'")));
  EXPECT_THAT([&] { reader.read_range("w", 998, 3, at::empty({3})); },
              ThrowsMessage<ConfigError>(HasSubstr("'w' has no elements 998 + 3: its shape is [10, 100]")));
  EXPECT_THAT([&] { reader.read_range("w", -1, 3, at::empty({3})); },
              ThrowsMessage<ConfigError>(HasSubstr("-1 + 3")));
  EXPECT_THAT([&] { reader.read_range("w", 0, 4, at::empty({3})); },
              ThrowsMessage<ConfigError>(HasSubstr("'w'")));
  EXPECT_THAT([&] { reader.read_range("w", 0, 3, at::empty({3}, at::kDouble)); },
              ThrowsMessage<ConfigError>(HasSubstr("'w' was saved as Float and cannot be read into Double")));
}

TEST_F(ReaderTest, AChangedByteIsFoundByTheReadItself) {
  flip(shard(), std::filesystem::file_size(shard()) - 3);
  const Reader reader(path_);
  EXPECT_THAT([&] { reader.read("w"); },
              ThrowsMessage<CheckpointError>(AllOf(HasSubstr(shard().string()), HasSubstr("'w'"))));
  EXPECT_TRUE(at::equal(reader.read("b"), at::full({3}, 2, at::kLong)));
}

TEST_F(ReaderTest, AChangedByteOfTheData) {
  flip(shard(), std::filesystem::file_size(shard()) - 3);
  expect_broken(shard(), "checksum");
}

TEST_F(ReaderTest, AChangedByteOfTheHeader) {
  const size_t name = read_text(shard()).find("\"w\"") + 1;
  flip(shard(), name);  // still a header, of another tensor
  expect_broken(shard(), "its header is not what was saved");
}

TEST_F(ReaderTest, ACutShard) {
  std::filesystem::resize_file(shard(), 100);
  expect_broken(shard(), "100 bytes where its manifest says");
}

TEST_F(ReaderTest, ALongerShard) {
  std::filesystem::resize_file(shard(), std::filesystem::file_size(shard()) + 1);
  expect_broken(shard(), "bytes where its manifest says");
}

TEST_F(ReaderTest, AMissingShard) {
  std::filesystem::remove(shard());
  expect_broken(shard(), "No such file");
}

TEST_F(ReaderTest, AShardThatIsAPipe) {
  std::filesystem::remove(shard());
  ASSERT_EQ(::mkfifo(shard().c_str(), 0600), 0);
  expect_broken(shard(), "not a regular file");
}

TEST_F(ReaderTest, AMissingManifest) {
  std::filesystem::remove(path_ / kManifestName);
  expect_broken(path_ / kManifestName, "No such file");
}

TEST_F(ReaderTest, AChangedManifest) {
  flip(path_ / kManifestName, 200);
  expect_broken(path_ / kManifestName, "checksum");
}

TEST_F(ReaderTest, AnEmptyManifest) {
  write_text(path_ / kManifestName, "");
  expect_broken(path_ / kManifestName, "0 bytes");
}

TEST_F(ReaderTest, AManifestThatIsNoJson) {
  const std::string rest = "what";
  write_text(path_ / kManifestName, "{\"checksum\":\"" + checksum_of(rest) + "\"," + rest);
  expect_broken(path_ / kManifestName, "no JSON");
}

TEST_F(ReaderTest, AManifestOfAnotherStep) {
  change_manifest([](auto& manifest) { manifest["step"] = 3; });
  testing::internal::CaptureStderr();
  EXPECT_EQ(newest_valid(folder_.path())->step, 1);
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("holds step 3"));
}

using Change = std::function<void(Json&)>;

TEST_F(ReaderTest, ManifestsThatAreNotTrue) {
  const std::pair<Change, const char*> cases[] = {
      {[](auto& m) { m["version"] = 3; }, "version: 3 where this Lockstep reads 1 to 2"},
      {[](auto& m) { m["version"] = 0; }, "version: 0 where this Lockstep reads 1 to 2"},
      {[](auto& m) { m["version"] = 2; }, "indices: missing"},
      {[](auto& m) { m["tensors"]["w"]["index"] = 0; }, "tensors.w: no such index file"},
      {[](auto& m) { m["format"] = "other"; }, "format"},
      {[](auto& m) { m.erase("step"); }, "step: missing"},
      {[](auto& m) { m["step"] = -1; }, "step: -1"},
      {[](auto& m) { m["step"] = 1.5; }, "step: not an integer"},
      {[](auto& m) { m["step"] = UINT64_MAX; }, "step: too large"},
      {[](auto& m) { m["world_size"] = 0; }, "world_size"},
      {[](auto& m) { m["metadata"] = 3; }, "metadata: not an object"},
      {[](auto& m) { m["files"][0]["name"] = "../" + kShard; }, "files[0].name"},
      {[](auto& m) { m["files"][0]["name"] = ".."; }, "files[0].name"},
      {[](auto& m) { m["files"][0]["header_checksum"] = "12"; }, "files[0].header_checksum"},
      {[](auto& m) { m["files"].push_back(m["files"][0]); }, "twice"},
      {[](auto& m) { m["tensors"]["w"]["dtype"] = "F128"; }, "tensors.w.dtype"},
      {[](auto& m) {
         m["tensors"]["w"]["shape"] = {1LL << 40, 1LL << 40};
       },
       "tensors.w.shape: too large"},
      {[](auto& m) {
         m["tensors"]["w"]["shape"] = {1LL << 62, 8, 0};
       },
       "tensors.w.shape: too large"},
      {[](auto& m) {
         m["tensors"]["w"]["shape"] = {-10, -100};
       },
       "tensors.w.shape"},
      {[](auto& m) { m["tensors"]["w"]["shape"] = std::vector<int>(65, 1); }, "tensors.w.shape"},
      {[](auto& m) {
         m["tensors"]["w"]["shape"] = {10, 200};
       },
       "from 1000 on are missing"},
      {[](auto& m) { m["tensors"]["w"]["pieces"][0]["count"] = INT64_MAX; }, "more elements"},
      {[](auto& m) { m["tensors"]["w"]["pieces"][0]["first"] = 1; }, "from 0 on are missing"},
      {[](auto& m) { m["tensors"]["w"]["pieces"][0]["file"] = 1; }, "no such file"},
      {[](auto& m) { m["tensors"]["w"]["pieces"][0]["file"] = INT64_MAX; }, "no such file"},
      {[](auto& m) { m["tensors"]["w"]["pieces"][0]["offset"] = INT64_MAX; }, "beyond the end"},
      {[](auto& m) { m["tensors"]["w"]["pieces"][0]["offset"] = m["files"][0]["bytes"]; }, "beyond the end"},
      {[](auto& m) { m["tensors"]["x"] = m["tensors"]["w"]; }, "overlap"},
  };
  const std::string whole = read_text(path_ / kManifestName);
  for (const auto& [change, reason] : cases) {
    change_manifest(change);
    EXPECT_THAT([&] { const Reader reader(path_); },
                ThrowsMessage<CheckpointError>(
                    AllOf(HasSubstr((path_ / kManifestName).string()), HasSubstr(reason))));
    write_text(path_ / kManifestName, whole);
  }
  EXPECT_EQ(newest_valid(folder_.path())->step, 2);
}

TEST_F(ReaderTest, AManifestThatNamesOtherTensorsThanTheShard) {
  change_manifest([](auto& manifest) { manifest["tensors"].erase("b"); });
  expect_broken(shard(), "does not hold the tensors");
}

TEST(CatalogTest, AFolderThatIsNotThereHasNone) {
  const Folder folder;
  EXPECT_EQ(newest_valid(folder / "checkpoints"), std::nullopt);
}

TEST(CatalogTest, OtherNamesAreNoCheckpoints) {
  const Folder folder;
  for (const char* name :
       {"step-1", "step-", "step--000000001", "step-00000000001", "best", ".tmp-step-0000000001-x"}) {
    std::filesystem::create_directory(folder / name);
  }
  EXPECT_TRUE(list(folder.path()).empty());
}

}  // namespace
}  // namespace lockstep::checkpoint
