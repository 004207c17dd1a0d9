// Trainers of models that Python exported.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/error.h>
#include <lockstep/exported_model.h>

#include "support/golden.h"
#include "support/temporary_folder.h"
#include "support/training.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

TEST(ExportedTrainingTest, SyncBatchNormIsRefusedIfTheModelHasBatchNorm) {
  const test::TemporaryFolder folder;
  const auto train = [&](const std::string& name) {
    test::Training training;
    training.config = test::quiet_config(folder.path() / name);
    training.config.sync_batch_norm = true;
    training.make_model = [name] { return ExportedModel(test::exported_file(name))->as_model(); };
    training.run();
  };
  EXPECT_THAT([&] { train("net"); },
              ThrowsMessage<ConfigError>(HasSubstr("whose batch norm is the operator "
                                                   "torch.ops.aten.batch_norm.default: leave it out")));
  train("line");  // without batch norm there is nothing to synchronise
}

}  // namespace
}  // namespace lockstep
