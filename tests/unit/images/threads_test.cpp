// Sources of every kind, read by several threads at once.

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "support/temporary_folder.h"
#include "unit/images/hdf5_files.h"
#include "unit/images/picture_files.h"
#include "unit/images/set_files.h"

namespace lockstep::test {
namespace {

constexpr int kThreads = 4, kRounds = 20;

// All threads see what one thread saw.
void read_at_once(const ImageSource& set) {
  std::vector<std::string> expected;
  for (int64_t i = 0; i < set.size(); ++i) expected.push_back(pixels_of(set, i));
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      std::vector<uint8_t> scratch;
      for (int64_t k = 0; k < kRounds * set.size(); ++k) {
        const int64_t i = (k * (2 * t + 1)) % set.size();
        const ImageView view = set.image(i, scratch);
        const std::string& right = expected[static_cast<size_t>(i)];
        if (!std::equal(right.begin(), right.end(), reinterpret_cast<const char*>(view.pixels))) ++wrong;
        if (set.label(i) >= set.num_classes()) ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

TEST(ImageThreads, Files) {
  const TemporaryFolder folder;
  const auto images = folder.path() / "images", labels = folder.path() / "labels";
  write_bytes(images, gzip(idx({7, 5, 3}, pattern(105))));
  write_bytes(labels, idx({7}, labels_up_to(7, 2)));
  read_at_once(*open_idx(images, labels));
  write_bytes(folder.path() / "cifar/train.bin", cifar_records(6, 100));
  read_at_once(*open_cifar100(folder.path() / "cifar", Split::kTrain));
  const auto hdf5 = folder.path() / "set.h5";
  const std::string pixels = pattern(7 * 5 * 3);
  const std::vector<int64_t> values{0, 1, 2, 0, 1, 2, 0};
  {
    Hdf5Writer file(hdf5);
    file.add("images", H5T_STD_U8LE, {7, 5, 3}, pixels.data(), {2, 5, 2}, 1);
    file.add("labels", H5T_STD_I64LE, {7}, values.data());
  }
  read_at_once(*open_hdf5(hdf5));
}

TEST(ImageThreads, Pictures) {
  const TemporaryFolder folder;
  for (int i = 0; i < 6; ++i) {
    const std::string pixels = pattern(20 * 10 * 3, i);
    const auto name = folder.path() / "class" / std::to_string(i);
    write_bytes(name.string() + ".png", png(pixels, 20, 10));
    write_bytes(name.string() + ".jpg", jpeg(pixels, 20, 10));
  }
  read_at_once(*open_image_folder(folder.path(), Split::kTrain));
}

TEST(ImageThreads, Synthetic) {
  read_at_once(*synthetic_images({.height = 9, .width = 11, .train_size = 30}, Split::kTrain));
}

}  // namespace
}  // namespace lockstep::test
