#include <lockstep/error.h>
#include <lockstep/loader.h>

namespace lockstep {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

TEST(BatchTest, PartsAreFoundByName) {
  Batch batch;
  batch.parts.push_back({"inside", Batch{{torch::ones({3, 1})}, {}}});
  batch.parts.push_back({"boundary", Batch{{torch::zeros({2, 1})}, {}}});
  EXPECT_EQ(batch["boundary"].data().size(0), 2);
  EXPECT_EQ(batch.size(), 5);
  EXPECT_THAT([&] { return batch["outside"].size(); },
              ThrowsMessage<ConfigError>(HasSubstr("no part 'outside': it has inside, boundary")));
  EXPECT_THAT([&] { return batch.data().size(0); }, ThrowsMessage<ConfigError>(HasSubstr("gives no")));
}

TEST(BatchTest, NoDataIsOneSample) { EXPECT_EQ(Batch().size(), 1); }

TEST(BatchTest, ALoaderWithAnotherBatchSizeGoesOnAtTheSamePlace) {
  Loader loader(TensorDataset({torch::arange(12).reshape({12, 1})}), {.batch_size = 4});
  Loader::Epoch epoch = loader.epoch(0);
  epoch.next();
  Loader half = loader.with_batch_size(2);
  half.load_state(loader.state());
  Loader::Epoch rest = half.epoch(0);
  EXPECT_EQ(rest.num_batches(), 4);
  EXPECT_TRUE(torch::equal(rest.next()->data(), torch::tensor({{4}, {5}})));
  EXPECT_THAT([&] { loader.with_batch_size(0); },
              ThrowsMessage<ConfigError>(HasSubstr("batch_size must be at least 1: 0")));
}

}  // namespace
}  // namespace lockstep
