#include <gmock/gmock.h>
#include <lockstep/weights.h>
#include <torch/torch.h>

#include "support/config_error.h"
#include "support/temporary_folder.h"
#include "unit/images/set_files.h"

namespace lockstep::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class ReadTensors : public testing::Test {
 protected:
  std::string write(const std::string& name, const std::string& bytes) {
    write_bytes(folder_.path() / name, bytes);
    return folder_.path() / name;
  }

  TemporaryFolder folder_;
};

TEST_F(ReadTensors, NpyOfEveryType) {
  const auto read = [this](const std::string& descr, const std::string& shape, const std::string& data) {
    return read_tensor(write("x.npy", npy(descr, shape, data)));
  };
  EXPECT_TRUE(
      read("<f4", "(2, 2)", integers<float>({1, 2, 3, 4})).equal(torch::tensor({{1.F, 2.F}, {3.F, 4.F}})));
  EXPECT_TRUE(
      read("<f8", "(2,)", integers<double>({0.5, -1})).equal(torch::tensor({0.5, -1.0}, torch::kDouble)));
  EXPECT_TRUE(read("<i2", "(2,)", integers<int16_t>({7, -9})).equal(torch::tensor({7, -9}, torch::kShort)));
  EXPECT_TRUE(read("|b1", "(2,)", std::string("\x01\x00", 2)).equal(torch::tensor({true, false})));
  EXPECT_EQ(read("<f2", "(1,)", std::string("\x00\x3c", 2)).item<float>(), 1);
  const at::Tensor complex = read("<c16", "(1,)", integers<double>({3, 4}));
  EXPECT_EQ(complex.scalar_type(), at::kComplexDouble);
  EXPECT_EQ(complex.abs().item<double>(), 5);
  EXPECT_EQ(read("<i8", "()", integers<int64_t>({42})).item<int64_t>(), 42);
  EXPECT_EQ(read("<f4", "(0, 3)", "").sizes(), (at::IntArrayRef{0, 3}));
}

TEST_F(ReadTensors, FortranOrder) {
  const std::string file = write("x.npy", npy("<f4", "(2, 3)", integers<float>({1, 2, 3, 4, 5, 6}), "True"));
  EXPECT_TRUE(read_tensor(file).equal(torch::tensor({{1.F, 3.F, 5.F}, {2.F, 4.F, 6.F}})));
}

TEST_F(ReadTensors, SafetensorsAndTorchFilesByName) {
  torch::nn::Linear linear(2, 1);
  save_weights(*linear, folder_.path() / "weights.pt");
  EXPECT_TRUE(read_tensor(folder_.path().string() + "/weights.pt:bias").equal(linear->bias));
  save_weights(*linear, folder_.path() / "weights.safetensors");
  const std::string file = folder_.path().string() + "/weights.safetensors";
  EXPECT_TRUE(read_tensor(file + ":weight").equal(linear->weight));
  EXPECT_TRUE(read_tensor(file, {"inputs", "bias"}).equal(linear->bias));
  EXPECT_THAT(
      error_of([&] { read_tensor(file, {"inputs"}); }),
      AllOf(HasSubstr("several tensors"), HasSubstr("weight"), HasSubstr("bias"), HasSubstr(":NAME")));
  EXPECT_THAT(error_of([&] { read_tensor(file + ":c"); }), HasSubstr("no tensor 'c'"));
}

TEST_F(ReadTensors, BrokenFiles) {
  const auto error = [this](const std::string& bytes) {
    return error_of([&] { read_tensor(write("x.npy", bytes)); });
  };
  const std::string good = npy("<f4", "(2,)", integers<float>({1, 2}));
  EXPECT_THAT(error(good.substr(0, good.size() - 1)),
              AllOf(HasSubstr("7 bytes of data"), HasSubstr("x.npy")));
  EXPECT_THAT(error(npy(">f4", "(2,)", integers<float>({1, 2}))), HasSubstr("astype()"));
  EXPECT_THAT(error("PK\x03\x04 no archive"), HasSubstr("x.npy"));
  EXPECT_THAT(error_of([&] { read_tensor("/nowhere/x.npy"); }), HasSubstr("/nowhere/x.npy"));
}

}  // namespace
}  // namespace lockstep::test
