// Streams and orders of the program in a training: alike on one and two ranks, with validation, and bit for
// bit after a resume in the middle of an epoch.

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <lockstep/data.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <vector>

#include "support/temporary_folder.h"
#include "support/training.h"

namespace lockstep {
namespace {

using test::Training;
using MakeLoader = std::function<Loader(const std::shared_ptr<Dataset>& samples)>;

constexpr int64_t kSamples = 64;

// The samples of a data set, one after the other.
class StreamOf : public StreamDataset {
 public:
  explicit StreamOf(std::shared_ptr<Dataset> samples) : samples_(std::move(samples)) {}

  int64_t size() const override { return samples_->size(); }
  std::unique_ptr<Stream> open(uint64_t) const override { return std::make_unique<Samples>(*samples_); }

 private:
  class Samples : public Stream {
   public:
    explicit Samples(const Dataset& samples) : samples_(samples) {}
    std::optional<Example> next() override {
      if (next_ == samples_.size()) return std::nullopt;
      return samples_.get(next_++, 0);
    }

   private:
    const Dataset& samples_;
    int64_t next_ = 0;
  };

  std::shared_ptr<Dataset> samples_;
};

class TrainerDataTest : public testing::Test {
 protected:
  // Three epochs of batches of 8 from this loader, saved after every step.
  Training::Outcome run(const std::string& name, int ranks, const MakeLoader& make, int64_t max_steps = 0) {
    Training one;
    one.ranks = ranks;
    one.samples = kSamples;
    one.config = test::quiet_config(folder_.path() / name);
    one.config.max_iter = 3;
    one.config.max_steps = max_steps;
    one.config.checkpoint_every_steps = 1;
    one.config.val_every = 1;
    one.loss = [this](const Batch& batch, const Model& model) -> LossResult {
      if (torch::GradMode::is_enabled()) note(batch);
      return mse(batch, model);
    };
    const std::shared_ptr<Dataset> samples = one.dataset();
    one.fit = [&](Trainer& trainer, const Loader& in_order) {
      const FitResult result = trainer.fit(make(samples), in_order);
      EXPECT_EQ(trainer.result().evaluated_samples, kSamples) << "each sample once";
      return result;
    };
    return one.run();
  }

  // A run that ends in the middle of an epoch and continues is equal to one that does not.
  void expect_exact_resume(const MakeLoader& make) {
    for (const int ranks : {1, 2}) {
      SCOPED_TRACE(ranks);
      const std::string name = fmt::format("cut-{}", ranks);
      run(name, ranks, make, /*max_steps=*/5);
      const auto rest = run(name, ranks, make);
      const auto whole = run(fmt::format("whole-{}", ranks), ranks, make);
      EXPECT_EQ(rest.result.steps, whole.result.steps);
      EXPECT_EQ(rest.result.train_loss, whole.result.train_loss);
      EXPECT_EQ(rest.result.metrics.at("val_loss"), whole.result.metrics.at("val_loss"));
      test::expect_equal_weights(rest, whole);
    }
  }

  // Training on these samples in the same order, without a stream or an order.
  void expect_equal_to(const MakeLoader& make, const MakeLoader& plain) {
    for (const int ranks : {1, 2}) {
      SCOPED_TRACE(ranks);
      test::expect_equal_weights(run(fmt::format("one-{}", ranks), ranks, make),
                                 run(fmt::format("other-{}", ranks), ranks, plain));
    }
  }

  std::multiset<double> trained() const {
    const std::lock_guard lock(mutex_);
    return trained_;
  }

 private:
  void note(const Batch& batch) {
    const std::lock_guard lock(mutex_);
    const torch::Tensor x = batch.data().flatten();
    for (int64_t i = 0; i < x.numel(); ++i) trained_.insert(x[i].item<double>());
  }

  test::TemporaryFolder folder_;
  mutable std::mutex mutex_;
  std::multiset<double> trained_;  // inputs of all ranks
};

TEST_F(TrainerDataTest, AStreamTrainsAsItsSamplesInOrder) {
  const MakeLoader stream = [](const auto& samples) {
    return Loader(std::make_shared<StreamOf>(samples), {.batch_size = 8});
  };
  expect_equal_to(stream, [](const auto& samples) { return Loader(samples, {.batch_size = 8}); });
  expect_exact_resume(stream);
}

TEST_F(TrainerDataTest, AnOrderOfTheProgramTrainsAsSamplesThatAreArrangedSo) {
  const auto backwards_and_twice = [](int64_t, int64_t) {
    std::vector<int64_t> indices;
    for (int64_t i = kSamples; i-- > kSamples / 2;) indices.insert(indices.end(), {i, i});
    return indices;
  };
  const MakeLoader ordered = [&](const auto& samples) {
    return Loader(samples,
                  {.batch_size = 8, .order = EpochOrder{.size = kSamples, .draw = backwards_and_twice}});
  };
  const MakeLoader arranged = [&](const auto& samples) {
    const auto at = [samples, indices = backwards_and_twice(0, 0)](int64_t index) {
      return samples->get(indices[static_cast<size_t>(index)], 0);
    };
    return Loader(std::make_shared<FunctionDataset>(kSamples, at), {.batch_size = 8});
  };
  expect_equal_to(ordered, arranged);
  expect_exact_resume(ordered);
}

TEST_F(TrainerDataTest, WeightsDecideWhichSamplesAreTrained) {
  std::vector<double> weights(kSamples, 1);
  std::fill(weights.begin() + kSamples / 2, weights.end(), 0);
  weights[3] = 50;
  const MakeLoader weighted = [&](const auto& samples) {
    return Loader(samples, {.batch_size = 8, .order = weighted_order(weights, kSamples), .seed = 7});
  };
  run("seen", 2, weighted);
  const std::multiset<double> seen = trained();
  ASSERT_EQ(seen.size(), static_cast<size_t>(3 * kSamples));
  EXPECT_LT(*seen.rbegin(), 0.5) << "the second half has no weight";
  const double heavy = Training().dataset()->get(3, 0)[0].item<double>();
  EXPECT_GT(seen.count(heavy), seen.size() / 2) << "50 of 81";
  EXPECT_LT(seen.count(heavy), seen.size()) << "epochs differ";
  expect_exact_resume(weighted);
}

}  // namespace
}  // namespace lockstep
