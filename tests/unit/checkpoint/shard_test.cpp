#include "checkpoint/shard.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "checkpoint/checksum.h"
#include "checkpoint/error.h"
#include "checkpoint/safetensors.h"
#include "unit/checkpoint/folder.h"

namespace lockstep::checkpoint {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;

constexpr at::ScalarType kDtypes[] = {at::kDouble,      at::kFloat,         at::kHalf, at::kBFloat16,
                                      at::kFloat8_e5m2, at::kFloat8_e4m3fn, at::kLong, at::kInt,
                                      at::kShort,       at::kChar,          at::kByte, at::kUInt16,
                                      at::kUInt32,      at::kUInt64,        at::kBool, at::kComplexFloat};

class ShardTest : public testing::Test {
 protected:
  ShardIndex write(const std::vector<TensorPiece>& pieces) {
    return write_shard(real_files(), folder_.path(), 0, 1, pieces);
  }
  std::filesystem::path path() const { return folder_ / shard_name(0, 1); }
  at::Tensor back(const std::string& name) const { return SafetensorsFile(path()).read(name); }

  Folder folder_;
};

TEST_F(ShardTest, HoldsEveryDtypeThatTheFormatKnows) {
  std::vector<TensorPiece> pieces;
  for (const at::ScalarType dtype : kDtypes) {
    pieces.push_back(TensorPiece::whole(c10::toString(dtype), at::arange(-3, 4, at::kFloat).abs().to(dtype)));
  }
  write(pieces);
  for (const TensorPiece& piece : pieces) {
    const at::Tensor read = back(piece.name);
    ASSERT_EQ(read.scalar_type(), piece.data.scalar_type());
    EXPECT_TRUE(at::equal(read.view(at::kByte), piece.data.view(at::kByte))) << piece.name;
  }
}

TEST_F(ShardTest, HoldsScalarsEmptyTensorsAndViews) {
  const at::Tensor base = at::arange(24, at::kFloat).view({2, 3, 4});
  const at::Tensor images = at::rand({2, 3, 4, 5}).contiguous(at::MemoryFormat::ChannelsLast);
  const std::vector<TensorPiece> pieces = {
      TensorPiece::whole("scalar", at::scalar_tensor(3, at::kInt)),
      TensorPiece::whole("empty", at::empty({0, 7}, at::kDouble)),
      TensorPiece::whole("transposed", base.permute({2, 0, 1})),
      TensorPiece::whole("every second", base.slice(2, 0, 4, 2)),
      TensorPiece::whole("expanded", at::ones({1, 3}).expand({5, 3})),
      TensorPiece::whole("channels last", images),
      TensorPiece::whole("parameter", at::rand({3}).requires_grad_()),
      TensorPiece::whole("conjugate", at::rand({3}, at::kComplexFloat).conj()),
  };
  write(pieces);
  for (const TensorPiece& piece : pieces) {
    EXPECT_EQ(back(piece.name).sizes(), piece.data.sizes()) << piece.name;
    EXPECT_TRUE(at::equal(back(piece.name), piece.data)) << piece.name;
  }
}

TEST_F(ShardTest, TiedTensorsAreSavedUnderEachName) {
  const at::Tensor tied = at::rand({4, 4});
  write({TensorPiece::whole("encoder", tied), TensorPiece::whole("decoder", tied)});
  EXPECT_TRUE(at::equal(back("encoder"), tied));
  EXPECT_TRUE(at::equal(back("decoder"), tied));
}

TEST_F(ShardTest, EveryTensorLiesAlignedToItsElements) {
  const ShardIndex index =
      write({TensorPiece::whole("a", at::ones({3}, at::kByte)), TensorPiece::whole("b", at::ones({1})),
             TensorPiece::whole("c", at::ones({3}, at::kHalf)),
             TensorPiece::whole("d", at::ones({1}, at::kDouble))});
  for (const auto& [name, tensor] : index.tensors) {
    EXPECT_EQ(tensor.pieces[0].offset % static_cast<int64_t>(c10::elementSize(tensor.dtype)), 0) << name;
  }
  EXPECT_EQ(SafetensorsFile(path()).header().bytes % 8, 0);
}

TEST_F(ShardTest, PartsCarryTheirPlaceInTheirNames) {
  const ShardIndex index = write({TensorPiece::part("w", at::ones({4}), {5, 2}, 3)});
  EXPECT_THAT(SafetensorsFile(path()).names(), ElementsAre("w[3:7]"));
  EXPECT_EQ(index.tensors.at("w").pieces[0].first, 3);
  EXPECT_EQ(index.tensors.at("w").shape, std::vector<int64_t>({5, 2}));
}

TEST_F(ShardTest, TheChecksumsAreThoseOfTheBytes) {
  const ShardIndex index = write({TensorPiece::whole("w", at::rand({1000, 1000}))});
  const std::string bytes = read_text(path());
  EXPECT_EQ(index.file.bytes, static_cast<int64_t>(bytes.size()));
  EXPECT_EQ(shard_bytes({TensorPiece::whole("w", at::rand({1000, 1000}))}), index.file.bytes);
  const Piece& piece = index.tensors.at("w").pieces[0];
  const auto header_bytes = static_cast<size_t>(SafetensorsFile(path()).header().bytes);
  EXPECT_EQ(index.file.header_checksum, checksum_of(std::string_view(bytes).substr(0, header_bytes)));
  EXPECT_EQ(piece.checksum, checksum_of(std::string_view(bytes).substr(static_cast<size_t>(piece.offset))));
}

// From the reference implementation: xxh128sum of an empty file.
TEST(ChecksumTest, IsXxh3) { EXPECT_EQ(checksum_of(""), "99aa06d3014798d86001c324468d497f"); }

TEST_F(ShardTest, WhatTheFormatCannotHoldIsRefusedByName) {
  const auto refused = [&](const std::string& name, const at::Tensor& tensor, const char* reason) {
    EXPECT_THAT([&] { write({TensorPiece::whole(name, tensor)}); },
                ThrowsMessage<ConfigError>(AllOf(HasSubstr("'" + name + "'"), HasSubstr(reason))));
    EXPECT_FALSE(std::filesystem::exists(path()));
  };
  refused("phase", at::zeros({3}, at::kComplexHalf), "ComplexHalf");
  refused("sparse", at::eye(3).to_sparse(), "sparse");
  refused("meta", at::empty({3}, at::TensorOptions().device(at::kMeta)), "meta");
  refused("__metadata__", at::ones({3}), "safetensors keeps this name");
  const TensorPiece undefined{.name = "nothing"};
  EXPECT_THAT([&] { write({undefined}); }, ThrowsMessage<ConfigError>(HasSubstr("'nothing'")));
  const TensorPiece twice = TensorPiece::whole("w", at::ones({2}));
  EXPECT_THAT([&] { write({twice, twice}); }, ThrowsMessage<ConfigError>(HasSubstr("'w'")));
  EXPECT_THAT([&] { write({TensorPiece::part("w", at::ones({4}), {5}, 2)}); },
              ThrowsMessage<ConfigError>(HasSubstr("elements 2 + 4 are not in its shape [5]")));
  EXPECT_THAT([&] { write({TensorPiece::whole("\xff\xfe", at::ones({2}))}); },
              ThrowsMessage<ConfigError>(HasSubstr("UTF-8")));
}

// Readers of safetensors, which has no complex128, see its parts.
TEST_F(ShardTest, Complex128IsStoredAsPairsOfFloat64) {
  const at::Tensor phase = torch::complex(at::rand({3, 2}, at::kDouble), at::rand({3, 2}, at::kDouble));
  const ShardIndex index = write({TensorPiece::whole("phase", phase),
                                  TensorPiece::part("part", phase.flatten().narrow(0, 2, 3), {6}, 2)});
  EXPECT_EQ(index.tensors.at("phase").dtype, at::kComplexDouble);
  EXPECT_EQ(index.tensors.at("phase").shape, std::vector<int64_t>({3, 2}));
  const SafetensorsFile file(path());
  EXPECT_TRUE(torch::equal(file.read("phase"), torch::view_as_real(phase)));
  EXPECT_TRUE(torch::equal(file.read("part[2:5]"), torch::view_as_real(phase.flatten().narrow(0, 2, 3))));
}

TEST_F(ShardTest, OddNamesAreKept) {
  const std::string name = "λ \"quoted\" \n/../\x01";
  write({TensorPiece::whole(name, at::ones({2})), TensorPiece::whole("", at::zeros({1}))});
  EXPECT_TRUE(at::equal(back(name), at::ones({2})));
  EXPECT_TRUE(at::equal(back(""), at::zeros({1})));
}

}  // namespace
}  // namespace lockstep::checkpoint
