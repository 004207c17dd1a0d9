#include <gmock/gmock.h>

#include "support/config_error.h"
#include "support/temporary_folder.h"
#include "unit/images/set_files.h"

namespace lockstep::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr int kCount = 7;

std::string lines(const std::string& word, int count) {
  std::string text;
  for (int i = 0; i < count; ++i) text += word + std::to_string(i) + "\n";
  return text + "\n";
}

NamedBytes cifar100_files() {
  return {{"cifar-100-binary/", ""},
          {"cifar-100-binary/coarse_label_names.txt", lines("coarse", 20)},
          {"cifar-100-binary/fine_label_names.txt", lines("fine", 100)},
          {"cifar-100-binary/test.bin", cifar_records(kCount - 2, 100, 9)},
          {"cifar-100-binary/train.bin", cifar_records(kCount, 100)}};
}

void check_cifar100(const ImageSource& set) {
  ASSERT_EQ(set.size(), kCount);
  EXPECT_EQ(set.num_classes(), 100);
  ASSERT_EQ(set.class_names().size(), 100);
  EXPECT_EQ(set.class_names()[99], "fine99");
  std::vector<uint8_t> scratch;
  const ImageView view = set.image(3, scratch);
  EXPECT_EQ(view.channels, 3);
  EXPECT_EQ(view.height, 32);
  EXPECT_EQ(view.layout, ImageView::Layout::kPlanar);
  for (int i = 0; i < kCount; ++i) {
    EXPECT_EQ(set.label(i), i);
    EXPECT_EQ(pixels_of(set, i), pattern(3072, i));
  }
}

class Cifar : public testing::Test {
 protected:
  std::filesystem::path write_folder(const NamedBytes& files) {
    for (const auto& [name, bytes] : files) {
      if (!name.ends_with('/')) write_bytes(folder_.path() / name, bytes);
    }
    return folder_.path() / "cifar-100-binary";
  }
  std::filesystem::path write_archive(const std::string& bytes) {
    write_bytes(folder_.path() / "set.tar", bytes);
    return folder_.path() / "set.tar";
  }

  TemporaryFolder folder_;
};

TEST_F(Cifar, FolderOf100) {
  const auto path = write_folder(cifar100_files());
  check_cifar100(*open_cifar100(path, Split::kTrain));
  EXPECT_EQ(open_cifar100(path, Split::kTest)->size(), kCount - 2);
  const ImageSet coarse = open_cifar100(path, Split::kTrain, Cifar100Labels::kCoarse);
  EXPECT_EQ(coarse->num_classes(), 20);
  EXPECT_EQ(coarse->label(6), 1);
  EXPECT_EQ(coarse->class_names()[19], "coarse19");
}

TEST_F(Cifar, ArchivesOf100) {
  for (const int filter : {ARCHIVE_FILTER_NONE, ARCHIVE_FILTER_GZIP, ARCHIVE_FILTER_XZ}) {
    check_cifar100(*open_cifar100(write_archive(tar(cifar100_files(), filter)), Split::kTrain));
  }
}

NamedBytes python_files() {
  return {{"cifar-100-python/meta", pickled_dict({{"fine_label_names", pickled_names("fine", 100)},
                                                  {"coarse_label_names", pickled_names("coarse", 20)}})},
          {"cifar-100-python/test", pickled_dict(cifar_pickle(kCount - 2, 100, 9))},
          {"cifar-100-python/train", pickled_dict(cifar_pickle(kCount, 100))}};
}

TEST_F(Cifar, PythonVersionOf100) {
  write_folder(python_files());
  const auto folder = folder_.path() / "cifar-100-python";
  const auto archive = folder_.path() / "cifar-100-python.tar.gz";
  write_bytes(archive, tar(python_files(), ARCHIVE_FILTER_GZIP));
  for (const auto& path : {folder, archive}) {
    check_cifar100(*open_cifar100(path, Split::kTrain));
    EXPECT_EQ(open_cifar100(path, Split::kTest)->size(), kCount - 2);
    const ImageSet coarse = open_cifar100(path, Split::kTrain, Cifar100Labels::kCoarse);
    EXPECT_EQ(coarse->label(6), 1);
    EXPECT_EQ(coarse->class_names()[19], "coarse19");
  }
}

TEST_F(Cifar, PythonVersionOf10) {
  NamedBytes files{{"cifar-10-batches-py/test_batch", pickled_dict(cifar_pickle(2, 10))}};
  for (int i = 1; i <= 5; ++i) {
    files.emplace_back("cifar-10-batches-py/data_batch_" + std::to_string(i),
                       pickled_dict(cifar_pickle(i, 10, 100 * i)));
  }
  write_folder(files);
  const ImageSet set = open_cifar10(folder_.path() / "cifar-10-batches-py", Split::kTrain);
  ASSERT_EQ(set->size(), 15);
  EXPECT_EQ(set->label(14), 4);
  EXPECT_EQ(pixels_of(*set, 14), pattern(3072, 504));
  EXPECT_EQ(open_cifar10(folder_.path() / "cifar-10-batches-py", Split::kTest)->size(), 2);
}

TEST_F(Cifar, BrokenPickles) {
  const auto error = [this](const std::string& bytes) {
    write_bytes(folder_.path() / "cifar-100-python/train", bytes);
    return error_of([&] { open_cifar100(folder_.path() / "cifar-100-python", Split::kTrain); });
  };
  const auto with = [](const std::string& key, const std::string& value) {
    PickledItems items = cifar_pickle(3, 100);
    for (auto& [name, old] : items) {
      if (name == key) old = value;
    }
    return pickled_dict(items);
  };
  const std::string good = pickled_dict(cifar_pickle(3, 100));
  EXPECT_THAT(error(good.substr(0, 500)), AllOf(HasSubstr("train"), HasSubstr("ends within its data")));
  EXPECT_THAT(error("\x80\x02."), HasSubstr("its stack is empty"));
  EXPECT_THAT(error("\x80\x02N."), HasSubstr("no dict"));
  EXPECT_THAT(error("\x80\x02" + std::string("P1\n.")), HasSubstr("instruction 0x50"));
  EXPECT_THAT(error(with("data", pickled_array(3, 3072, std::string(3 * 3072, 'x'), "f4"))),
              HasSubstr("unsigned bytes"));
  EXPECT_THAT(error(with("data", pickled_array(4, 3072, std::string(3 * 3072, 'x')))),
              HasSubstr("unsigned bytes"));
  EXPECT_THAT(error(with("data", pickled_array(3, 100, std::string(300, 'x')))), HasSubstr("not 3072"));
  EXPECT_THAT(error(with("fine_labels", pickled_list({pickled_number(1)}))), HasSubstr("1 labels for 3"));
  EXPECT_THAT(error(with("fine_labels", pickled_list({pickled_text("1")}))), HasSubstr("no integer"));
  EXPECT_THAT(
      error(with("fine_labels", pickled_list({pickled_number(1), pickled_number(100), pickled_number(2)}))),
      HasSubstr("label 100"));
}

TEST_F(Cifar, FilesOf10AreOneSet) {
  NamedBytes files{{"cifar-10-batches-bin/test_batch.bin", cifar_records(2, 10)}};
  for (int i = 1; i <= 5; ++i) {
    files.emplace_back("cifar-10-batches-bin/data_batch_" + std::to_string(i) + ".bin",
                       cifar_records(i, 10, 100 * i));
  }
  write_folder(files);
  const auto archive = write_archive(tar(files));
  for (const auto& path : {folder_.path() / "cifar-10-batches-bin", archive}) {
    const ImageSet set = open_cifar10(path, Split::kTrain);
    ASSERT_EQ(set->size(), 15);
    EXPECT_EQ(set->num_classes(), 10);
    EXPECT_TRUE(set->class_names().empty());  // no file of names
    int64_t index = 0;
    for (int i = 1; i <= 5; ++i) {
      for (int j = 0; j < i; ++j, ++index) {
        EXPECT_EQ(set->label(index), j);
        EXPECT_EQ(pixels_of(*set, index), pattern(3072, 100 * i + j));
      }
    }
    EXPECT_EQ(open_cifar10(path, Split::kTest)->size(), 2);
  }
  std::filesystem::remove(folder_.path() / "cifar-10-batches-bin/data_batch_4.bin");
  EXPECT_THAT(error_of([&] { open_cifar10(folder_.path() / "cifar-10-batches-bin", Split::kTrain); }),
              HasSubstr("data_batch_4.bin"));
}

TEST_F(Cifar, CutRecordsNameTheByteWhereTheyBegin) {
  NamedBytes files = cifar100_files();
  files.back().second.resize(2 * 3074 + 100);
  const auto path = write_folder(files);
  EXPECT_THAT(error_of([&] { open_cifar100(path, Split::kTrain); }),
              AllOf(HasSubstr("train.bin"), HasSubstr("at byte 6148")));
  write_bytes(path / "train.bin", "");
  EXPECT_THAT(error_of([&] { open_cifar100(path, Split::kTrain); }), HasSubstr("at byte 0"));
  // The records of the other version.
  write_bytes(path / "train.bin", cifar_records(3, 10));
  EXPECT_THAT(error_of([&] { open_cifar100(path, Split::kTrain); }), HasSubstr("a record of 3074"));
}

TEST_F(Cifar, LabelsOutOfRangeNameTheirByte) {
  NamedBytes files = cifar100_files();
  files.back().second[3074 * 2 + 1] = 100;
  const auto path = write_folder(files);
  EXPECT_THAT(error_of([&] { open_cifar100(path, Split::kTrain); }),
              AllOf(HasSubstr("at byte 6149"), HasSubstr("label 100 is not in 0 to 99")));
  write_bytes(path / "fine_label_names.txt", lines("fine", 99));
  EXPECT_THAT(error_of([&] { open_cifar100(path, Split::kTest); }), HasSubstr("99 names"));
}

TEST_F(Cifar, HostileArchives) {
  const auto error = [&](const std::string& bytes) {
    return error_of([&] { open_cifar100(write_archive(bytes), Split::kTrain); });
  };
  const std::string good = tar(cifar100_files());
  EXPECT_THAT(error("no archive"), HasSubstr("no tar archive"));
  EXPECT_THAT(error(""), HasSubstr("set.tar"));
  EXPECT_THAT(error(good.substr(0, good.size() - 20'000)), HasSubstr("no tar archive, or cut"));
  NamedBytes twice = cifar100_files();
  twice.insert(twice.begin(), {"/etc/train.bin", twice.back().second});
  twice.erase(twice.begin() + 3);  // the names: it is read to its end
  EXPECT_THAT(error(tar(twice)), HasSubstr("train.bin is in it twice"));
  EXPECT_THAT(error(tar({{"../../x/test.bin", "x"}})), HasSubstr("holds no file train.bin"));
  // Nothing is written: names that lead outside are only names.
  EXPECT_THAT(error(tar({{"/absolute/train.bin", "x"}})), HasSubstr("within a record"));

  const size_t header = good.find("cifar-100-binary/train.bin");
  const auto with_size = [&](const std::string& octal) {
    std::string bytes = good;
    bytes.replace(header + 124, octal.size(), octal);
    bytes.replace(header + 148, 8, "        ");
    unsigned sum = 0;
    for (size_t i = 0; i < 512; ++i) sum += static_cast<unsigned char>(bytes[header + i]);
    char text[8];
    std::snprintf(text, sizeof text, "%06o", sum);
    return bytes.replace(header + 148, 7, text, 7);
  };
  EXPECT_THAT(error(with_size("77777777777")), HasSubstr("is the most"));
  EXPECT_THAT(error(with_size("00700000000")), HasSubstr("cut"));
}

}  // namespace
}  // namespace lockstep::test
