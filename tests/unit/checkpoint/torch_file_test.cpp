// Files that PyTorch 2.11 wrote (golden/make_golden.py) are read, and what is written is
// read back. Python opens ours in tests/peers/test_interop.py.

#include "checkpoint/torch_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/error.h>
#include <sys/resource.h>
#include <torch/torch.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <map>

#include "support/formula.h"
#include "support/temporary_folder.h"
#include "unit/checkpoint/golden_files.h"

namespace lockstep::checkpoint {
namespace {

using test::golden;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

std::map<std::string, at::Tensor> read(const std::string& name) {
  const NamedTensors tensors = read_torch_file(golden(name));
  return {tensors.begin(), tensors.end()};
}

at::Tensor count(at::IntArrayRef sizes, at::ScalarType dtype = at::kFloat) {
  return torch::arange(c10::multiply_integers(sizes)).reshape(sizes).to(dtype);
}

class EveryKindTest : public testing::TestWithParam<std::string> {};

TEST_P(EveryKindTest, DtypesKeepTheirValues) {
  const auto tensors = read(GetParam());
  const std::map<std::string, at::ScalarType> dtypes = {{"float32", at::kFloat},
                                                        {"float64", at::kDouble},
                                                        {"float16", at::kHalf},
                                                        {"bfloat16", at::kBFloat16},
                                                        {"int64", at::kLong},
                                                        {"int32", at::kInt},
                                                        {"int16", at::kShort},
                                                        {"int8", at::kChar},
                                                        {"uint8", at::kByte},
                                                        {"bool", at::kBool},
                                                        {"complex64", at::kComplexFloat},
                                                        {"complex128", at::kComplexDouble},
                                                        {"uint16", at::kUInt16},
                                                        {"uint32", at::kUInt32},
                                                        {"uint64", at::kUInt64},
                                                        {"float8_e5m2", at::kFloat8_e5m2},
                                                        {"float8_e4m3fn", at::kFloat8_e4m3fn}};
  for (const auto& [name, dtype] : dtypes) {
    ASSERT_EQ(tensors.at(name).scalar_type(), dtype) << name;
    EXPECT_TRUE(test::same_bits(tensors.at(name), count({2, 3}, dtype))) << name;
  }
}

TEST_P(EveryKindTest, PlacesInAStorageAreKept) {
  const auto tensors = read(GetParam());
  const at::Tensor grid = count({4, 5});
  EXPECT_TRUE(tensors.at("scalar").equal(torch::tensor(3.5F)));
  EXPECT_EQ(tensors.at("empty").sizes(), (std::vector<int64_t>{0, 4}));
  EXPECT_TRUE(tensors.at("grid").equal(grid));
  EXPECT_TRUE(tensors.at("transposed").equal(grid.t()));
  EXPECT_TRUE(tensors.at("inner").equal(grid.slice(0, 1, 3).slice(1, 2)));
  EXPECT_TRUE(tensors.at("expanded").equal(torch::ones({4, 3})));
  EXPECT_TRUE(tensors.at("channels_last").equal(count({2, 3, 4, 4})));
  EXPECT_TRUE(tensors.at("channels_last").is_contiguous(at::MemoryFormat::ChannelsLast));
  EXPECT_TRUE(tensors.at("conjugate").equal(torch::complex(count({3}), -count({3}))));
  EXPECT_TRUE(tensors.at("negative").equal(-count({3})));
  EXPECT_TRUE(tensors.at("parameter").equal(count({3})));
  EXPECT_TRUE(tensors.at("with_attribute").equal(count({2})));
}

TEST_P(EveryKindTest, SharedMemoryIsShared) {
  const auto tensors = read(GetParam());
  EXPECT_EQ(tensors.at("tied").data_ptr(), tensors.at("grid").data_ptr());
  EXPECT_EQ(tensors.at("transposed").storage().data(), tensors.at("grid").storage().data());
}

TEST_P(EveryKindTest, WhatIsWrittenIsReadBack) {
  const test::TemporaryFolder folder;
  const NamedTensors tensors = read_torch_file(golden(GetParam()));
  write_torch_file(folder.path() / "again.pt", tensors);
  const NamedTensors again = read_torch_file(folder.path() / "again.pt");
  ASSERT_EQ(again.size(), tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    EXPECT_EQ(again[i].first, tensors[i].first);
    ASSERT_EQ(again[i].second.scalar_type(), tensors[i].second.scalar_type()) << tensors[i].first;
    EXPECT_TRUE(test::same_bits(again[i].second, tensors[i].second)) << tensors[i].first;
    EXPECT_TRUE(again[i].second.is_contiguous());
  }
}

INSTANTIATE_TEST_SUITE_P(Protocols, EveryKindTest,
                         testing::Values("every_kind_2.pt", "every_kind_3.pt", "every_kind_4.pt",
                                         "every_kind_5.pt"),
                         [](const auto& info) { return "P" + info.param.substr(11, 1); });

// The state dict of a network, in all places where programs put it.
class NetworkTest : public testing::TestWithParam<std::string> {};

TEST_P(NetworkTest, IsFound) {
  const NamedTensors tensors = read_torch_file(golden(GetParam()));
  ASSERT_EQ(tensors.size(), 9U);
  const std::string prefix = GetParam() == "wrapped.pt" ? "module." : "";
  const std::map<std::string, at::Tensor> by_name(tensors.begin(), tensors.end());
  EXPECT_TRUE(by_name.at(prefix + "0.weight").equal(count({4, 3})));
  EXPECT_TRUE(by_name.at(prefix + "1.running_var").equal(count({4})));
  EXPECT_TRUE(by_name.at(prefix + "1.num_batches_tracked").equal(torch::zeros({}, at::kLong)));
  EXPECT_TRUE(by_name.at(prefix + "2.bias").equal(count({2})));
}

INSTANTIATE_TEST_SUITE_P(Files, NetworkTest,
                         testing::Values("network.pt", "wrapped.pt", "training.pt", "tuple.pt", "legacy.pt",
                                         "script.pt", "big_endian.pt"),
                         [](const auto& info) { return info.param.substr(0, info.param.size() - 3); });

TEST(TorchFileTest, WhatCannotBeReadIsSaid) {
  EXPECT_THAT([] { read("whole_module.pt"); },
              ThrowsMessage<ConfigError>(AllOf(HasSubstr("whole_module.pt"),
                                               HasSubstr("'torch.nn.modules.container.Sequential'"),
                                               HasSubstr("torch.save(model.state_dict()"))));
  EXPECT_THAT([] { read("single.pt"); },
              ThrowsMessage<ConfigError>(HasSubstr("a single tensor without a name")));
  EXPECT_THAT([] { read("two.pt"); }, ThrowsMessage<ConfigError>(HasSubstr("2 keys: 'encoder', 'decoder'")));
  EXPECT_THAT([] { read("make_golden.py"); },
              ThrowsMessage<ConfigError>(HasSubstr("torch.save did not write it")));
  EXPECT_THAT([] { read("absent.pt"); }, ThrowsMessage<ConfigError>(HasSubstr("No such file")));
  EXPECT_THAT([] { read(""); }, ThrowsMessage<ConfigError>(HasSubstr("not a regular file")));
}

TEST(TorchFileTest, ACutFileIsAnError) {
  const test::TemporaryFolder folder;
  std::ifstream source(golden("network.pt"), std::ios::binary);
  const std::string content((std::istreambuf_iterator<char>(source)), {});
  for (size_t bytes = 0; bytes < content.size(); bytes += 97) {
    const auto path = folder.path() / "cut.pt";
    std::ofstream(path, std::ios::binary) << content.substr(0, bytes);
    EXPECT_THROW(read_torch_file(path), ConfigError) << bytes;
  }
}

TEST(TorchFileTest, TensorsOfAnyLayoutAreWritten) {
  const test::TemporaryFolder folder;
  const at::Tensor base = count({4, 6});
  write_torch_file(folder.path() / "w.pt", {{"t", base.t()},
                                            {"part", base.select(1, 2)},
                                            {"t2", base.t()},
                                            {"grad", base.clone().requires_grad_()},
                                            {"", torch::ones({})}});
  const NamedTensors again = read_torch_file(folder.path() / "w.pt");
  EXPECT_TRUE(again[0].second.equal(base.t()));
  EXPECT_TRUE(again[1].second.equal(base.select(1, 2)));
  EXPECT_EQ(again[2].second.data_ptr(), again[0].second.data_ptr()) << "tied";
  EXPECT_TRUE(again[3].second.equal(base));
  EXPECT_TRUE(again[4].second.equal(torch::ones({})));
  write_torch_file(folder.path() / "none.pt", {});
  EXPECT_TRUE(read_torch_file(folder.path() / "none.pt").empty());
}

TEST(TorchFileTest, ATensorWithoutPlainMemoryIsNamed) {
  const test::TemporaryFolder folder;
  const auto path = folder.path() / "w.pt";
  EXPECT_THAT(
      [&] {
        write_torch_file(path, {{"odd", torch::ones({2, 2}).to_sparse()}});
      },
      ThrowsMessage<ConfigError>(HasSubstr("'odd'")));
  EXPECT_FALSE(std::filesystem::exists(path));
}

// The system cuts the file as a full disk does.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    ::getrlimit(RLIMIT_FSIZE, &old_);
    const rlimit limit{bytes, old_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() {
    ::setrlimit(RLIMIT_FSIZE, &old_);
    std::signal(SIGXFSZ, handler_);
  }
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;

 private:
  rlimit old_{};
  void (*handler_)(int);
};

TEST(TorchFileTest, AFullDiskLeavesTheOldFile) {
  const test::TemporaryFolder folder;
  const auto path = folder.path() / "w.pt";
  write_torch_file(path, {{"w", torch::ones({3})}});
  for (const rlim_t bytes : {0, 10, 1000, 20000}) {
    const FileSizeLimit limit(bytes);
    EXPECT_THAT(
        [&] {
          write_torch_file(path, {{"w", torch::zeros({10000})}});
        },
        ThrowsMessage<ConfigError>(HasSubstr("w.pt")));
  }
  EXPECT_TRUE(read_torch_file(path)[0].second.equal(torch::ones({3})));
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 1)
      << "nothing else is left";
}

}  // namespace
}  // namespace lockstep::checkpoint
