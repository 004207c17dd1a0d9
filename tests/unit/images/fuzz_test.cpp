// Hostile bytes: seeded mutations of a small good file of each format. Whatever comes, it
// is read or it is a ConfigError.

#include <gtest/gtest.h>
#include <lockstep/error.h>

#include "images/picture.h"
#include "support/fuzz.h"
#include "support/temporary_folder.h"
#include "unit/images/hdf5_files.h"
#include "unit/images/picture_files.h"
#include "unit/images/set_files.h"

namespace lockstep::test {
namespace {

constexpr int kMutationsPerFile = 1500;
constexpr std::string_view kSpice("\x00\x00\x00\x01\xff\xff\xff\xff\x7f\xff\xff\xff\x80\x00\x00\x00", 16);

// How many were read and how many refused: a test in which one of them never happens
// tests nothing.
struct Outcome {
  int read = 0;
  int refused = 0;

  template <typename Body>
  void count(Body body) {
    try {
      body();
      ++read;
    } catch (const ConfigError&) {
      ++refused;
    }
  }
  void expect_both() const {
    EXPECT_GT(read, 0);
    EXPECT_GT(refused, 0);
  }
};

void read_all(const ImageSource& set) {
  int64_t sum = 0;
  for (int64_t i = 0; i < set.size(); ++i) {
    for (const char pixel : pixels_of(set, i)) sum += pixel;
    EXPECT_GE(set.label(i), 0);
    EXPECT_LT(set.label(i), set.num_classes());
  }
  EXPECT_NE(sum, INT64_MAX);
}

class ImageFuzz : public testing::Test {
 protected:
  // Calls with mutations of these files.
  template <typename Call>
  void mutations(const std::vector<std::string>& files, Call call) {
    std::vector<FuzzFile> all;
    for (const std::string& bytes : files) all.push_back({"honest", bytes});
    for_each_mutation(all, kMutationsPerFile, kSpice, 20260301, call);
  }
  // The same with bytes changed and none moved: what is at an address stays there.
  template <typename Call>
  void changes(const std::vector<std::string>& files, Call call) {
    std::mt19937_64 random(20260302);
    const auto pick = [&](size_t size) { return std::uniform_int_distribution<size_t>(0, size)(random); };
    for (const std::string& file : files) {
      for (int i = 0; i < kMutationsPerFile; ++i) {
        std::string bytes = file;
        for (size_t n = 1 + pick(3); n > 0; --n) {
          const std::string_view spice = kSpice.substr(pick(kSpice.size() - 1), 1 + pick(7));
          bytes.replace(pick(bytes.size() - spice.size()), spice.size(), spice);
        }
        call(bytes);
      }
    }
  }

  TemporaryFolder folder_{"/dev/shm"};
  Outcome outcome_;
};

TEST_F(ImageFuzz, Idx) {
  const auto images = folder_.path() / "images", labels = folder_.path() / "labels";
  const std::string good_images = idx({3, 4, 5}, pattern(60)), good_labels = idx({3}, labels_up_to(3, 3));
  const auto read = [&](const std::string& image_bytes, const std::string& label_bytes) {
    write_bytes(images, image_bytes);
    write_bytes(labels, label_bytes);
    outcome_.count([&] { read_all(*open_idx(images, labels)); });
  };
  mutations({good_images, gzip(good_images)}, [&](const std::string& bytes) {
    read(bytes, good_labels);
    read(gzip(bytes), good_labels);  // so that they reach the header
  });
  mutations({good_labels, gzip(good_labels)}, [&](const std::string& bytes) {
    read(good_images, bytes);
    read(good_images, gzip(bytes));
  });
  outcome_.expect_both();
}

TEST_F(ImageFuzz, Cifar) {
  const std::string records = cifar_records(2, 100);
  std::string names;
  for (int i = 0; i < 100; ++i) names += "x\n";
  const auto folder = folder_.path() / "folder", archive = folder_.path() / "set.tar";
  mutations({records}, [&](const std::string& bytes) {
    write_bytes(folder / "train.bin", bytes);
    outcome_.count([&] { read_all(*open_cifar100(folder, Split::kTrain)); });
  });
  const NamedBytes files{{"a/fine_label_names.txt", names}, {"a/train.bin", records}};
  const std::vector<std::string> archives{tar(files), tar(files, ARCHIVE_FILTER_GZIP),
                                          tar(files, ARCHIVE_FILTER_XZ)};
  const auto read = [&](const std::string& bytes) {
    write_bytes(archive, bytes);
    outcome_.count([&] { read_all(*open_cifar100(archive, Split::kTrain)); });
  };
  mutations(archives, read);
  changes(archives, read);
  outcome_.expect_both();
}

TEST_F(ImageFuzz, Hdf5) {
  const std::string pixels = pattern(4 * 3 * 5 * 4);
  const std::vector<int64_t> labels{0, 1, 2, 1};
  const auto path = folder_.path() / "set.h5";
  std::vector<std::string> files;
  for (const bool is_latest : {false, true}) {
    for (const unsigned deflate : {0, 1}) {
      if (is_latest && deflate > 0) continue;
      {
        Hdf5Writer file(path, 0, is_latest);
        file.add("images", H5T_STD_U8LE, {4, 5, 4, 3}, pixels.data(),
                 deflate == 0 ? std::vector<hsize_t>{} : std::vector<hsize_t>{2, 5, 4, 3}, deflate);
        file.add("labels", H5T_STD_I64LE, {4}, labels.data());
      }
      files.push_back(bytes_of(path));
    }
  }
  const auto read = [&](const std::string& bytes) {
    write_bytes(path, bytes);
    outcome_.count([&] { read_all(*open_hdf5(path)); });
  };
  mutations(files, read);
  changes(files, read);
  outcome_.expect_both();
}

TEST_F(ImageFuzz, Tensors) {
  const std::string pixels = pattern(2 * 3 * 4 * 5), labels = integers<int64_t>({0, 1});
  const auto path = folder_.path() / "set", labels_path = folder_.path() / "labels";
  const auto read_safetensors = [&](const std::string& bytes) {
    write_bytes(path, bytes);
    outcome_.count([&] { read_all(*open_safetensors(path)); });
  };
  const std::string file =
      safetensors({{"images", "U8", "[2,3,4,5]", pixels}, {"labels", "I64", "[2]", labels}});
  mutations({file}, read_safetensors);
  changes({file}, read_safetensors);
  const std::string npy_images = npy("|u1", "(2, 3, 4, 5)", pixels), npy_labels = npy("<i8", "(2,)", labels);
  const auto read_npy = [&](const std::string& bytes) {
    write_bytes(path, bytes);
    write_bytes(labels_path, npy_labels);
    outcome_.count([&] { read_all(*open_npy(path, labels_path)); });
    write_bytes(labels_path, bytes);
    write_bytes(path, npy_images);
    outcome_.count([&] { read_all(*open_npy(path, labels_path)); });
  };
  mutations({npy_images, npy_labels}, read_npy);
  changes({npy_images, npy_labels}, read_npy);
  outcome_.expect_both();
}

TEST_F(ImageFuzz, Annotations) {
  std::string list;
  for (const std::string number : {"0", "1", "2"}) {
    write_bytes(folder_.path() / "val/images" / ("val_" + number + ".png"), png(std::string(12, 'x'), 2, 2));
    list += "val_" + number + ".png\tn0" + number + "\t0\t32\t44\t62\n";
  }
  mutations({list}, [&](const std::string& bytes) {
    write_bytes(folder_.path() / "val/val_annotations.txt", bytes);
    outcome_.count([&] { read_all(*open_image_folder(folder_.path(), Split::kTest)); });
  });
  outcome_.expect_both();
}

TEST_F(ImageFuzz, Pictures) {
  const std::string pixels = pattern(12 * 9 * 3);
  const std::vector<std::string> files{
      jpeg(pixels, 12, 9), jpeg(pixels, 12, 9, TJPF_RGB, TJFLAG_PROGRESSIVE),
      jpeg(pattern(12 * 9), 12, 9, TJPF_GRAY), png(pixels, 12, 9),
      png(pixels, 12, 9, {.interlace = PNG_INTERLACE_ADAM7, .has_gamma = true})};
  std::vector<uint8_t> scratch;
  const auto read = [&](const std::string& bytes) {
    outcome_.count([&] {
      const ImageView view = images::decode_picture(
          {reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()}, "file", scratch);
      EXPECT_LE(int64_t{view.height} * view.width * 3, static_cast<int64_t>(scratch.size()));
    });
  };
  mutations(files, read);
  changes(files, read);
  outcome_.expect_both();
}

}  // namespace
}  // namespace lockstep::test
