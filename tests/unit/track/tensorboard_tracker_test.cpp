#include "track/trackers.h"

#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/error.h>
#include <protozero/pbf_reader.hpp>

#include <array>
#include <cmath>
#include <cstring>
#include <string>

#include "track/tfrecord.h"
#include "unit/track/file_size_limit.h"
#include "unit/track/run_folder.h"

namespace lockstep::track {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::MatchesRegex;
using testing::SizeIs;
using testing::ThrowsMessage;

template <typename T>
T read_number(const std::string& bytes, size_t offset) {
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof(T));
  return value;
}

// The records of a file; fails the test where a length or a sum is wrong.
std::vector<std::string> records_of(const std::string& bytes) {
  std::vector<std::string> records;
  for (size_t offset = 0; offset < bytes.size();) {
    const uint64_t length = read_number<uint64_t>(bytes, offset);
    EXPECT_EQ(read_number<uint32_t>(bytes, offset + 8), masked_crc32c(bytes.substr(offset, 8)));
    records.push_back(bytes.substr(offset + 12, length));
    EXPECT_EQ(read_number<uint32_t>(bytes, offset + 12 + length), masked_crc32c(records.back()));
    offset += 12 + length + 4;
    EXPECT_LE(offset, bytes.size());
  }
  return records;
}

// What the tests look at in an event.
struct Event {
  int64_t step = -1;
  std::string version;
  bool starts_session = false;
  std::vector<std::pair<std::string, float>> scalars;
};

Event parse(const std::string& record) {
  Event event;
  for (protozero::pbf_reader reader(record); reader.next();) {
    if (reader.tag() == 2) {
      event.step = reader.get_int64();
    } else if (reader.tag() == 3) {
      event.version = reader.get_string();
    } else if (reader.tag() == 7) {
      auto log = reader.get_message();
      event.starts_session = log.next(1) && log.get_enum() == 1;
    } else if (reader.tag() == 5) {
      for (auto summary = reader.get_message(); summary.next(1);) {
        auto value = summary.get_message();
        std::pair<std::string, float> scalar;
        while (value.next()) {
          if (value.tag() == 1) {
            scalar.first = value.get_string();
          } else if (value.tag() == 2) {
            scalar.second = value.get_float();
          } else {
            value.skip();
          }
        }
        event.scalars.push_back(scalar);
      }
    } else {
      reader.skip();
    }
  }
  return event;
}

class TensorboardTrackerTest : public testing::Test {
 protected:
  std::vector<Event> events() const {
    std::vector<Event> found;
    for (const std::string& record : records_of(folder_.content_of(folder_.names().at(0)))) {
      found.push_back(parse(record));
    }
    return found;
  }
  RunFolder folder_;
};

TEST(RecordTest, HasLengthBytesAndTheirSums) {
  const std::string framed = frame_record("abc");
  EXPECT_THAT(framed, SizeIs(8 + 4 + 3 + 4));
  EXPECT_THAT(records_of(framed + frame_record("") + framed), ElementsAre("abc", "", "abc"));
}

TEST_F(TensorboardTrackerTest, NamesTheFileSoThatTensorBoardFindsIt) {
  const auto tracker = make_tensorboard_tracker(folder_.new_run());
  std::array<char, 256> host{};
  ::gethostname(host.data(), host.size() - 1);
  EXPECT_THAT(folder_.names(),
              ElementsAre(MatchesRegex("events\\.out\\.tfevents\\.[0-9]+\\." + std::string(host.data()) +
                                       "\\." + std::to_string(::getpid()) + "\\.0")));
}

TEST_F(TensorboardTrackerTest, TwoRunsOfOneProcessHaveTwoFiles) {
  const auto one = make_tensorboard_tracker(folder_.new_run());
  const auto other = make_tensorboard_tracker(folder_.new_run());
  EXPECT_THAT(folder_.names(), SizeIs(2));
}

TEST_F(TensorboardTrackerTest, StartsWithTheVersionAndTheSession) {
  const auto tracker = make_tensorboard_tracker(folder_.resumed_at(7));
  const auto found = events();
  ASSERT_THAT(found, SizeIs(2));
  EXPECT_EQ(found[0].version, "brain.Event:2");
  EXPECT_TRUE(found[1].starts_session);
  EXPECT_EQ(found[1].step, 7);
}

TEST_F(TensorboardTrackerTest, HandsEveryWriteToTheSystemAtOnce) {
  const auto tracker = make_tensorboard_tracker(folder_.new_run());
  tracker->write_scalars(std::vector<Scalar>{{"loss", 0.5}, {"nan", std::nan("")}}, 3);
  const Event event = events().back();
  EXPECT_EQ(event.step, 3);
  ASSERT_THAT(event.scalars, SizeIs(2));
  EXPECT_EQ(event.scalars[0], (std::pair<std::string, float>("loss", 0.5F)));
  EXPECT_TRUE(std::isnan(event.scalars[1].second));
}

TEST_F(TensorboardTrackerTest, AFullDiskLeavesAFileOfWholeRecords) {
  const auto tracker = make_tensorboard_tracker(folder_.new_run());
  const auto size = std::filesystem::file_size(folder_.path() / folder_.names().at(0));
  {
    const FileSizeLimit limit(size + 10);
    EXPECT_THROW(tracker->write_scalars(std::vector<Scalar>{{"loss", 1}}, 1), ConfigError);
    EXPECT_THAT(events(), SizeIs(2));
  }
  tracker->write_scalars(std::vector<Scalar>{{"loss", 2}}, 2);
  EXPECT_EQ(events().back().step, 2);
  EXPECT_THAT(events(), SizeIs(3));
}

TEST_F(TensorboardTrackerTest, RefusesAnImageWhosePixelsDoNotFit) {
  const auto tracker = make_tensorboard_tracker(folder_.new_run());
  const auto write = [&](Image image) { return [&tracker, image] { tracker->write_image("i", image, 1); }; };
  EXPECT_THAT(write({.height = 2, .width = 2, .channels = 3, .pixels = std::vector<uint8_t>(11)}),
              ThrowsMessage<ConfigError>(HasSubstr("11")));
  EXPECT_THAT(write({.height = 2, .width = 2, .channels = 2, .pixels = std::vector<uint8_t>(8)}),
              ThrowsMessage<ConfigError>(HasSubstr("channels")));
  EXPECT_THAT(write({.height = 0, .width = 0, .channels = 1, .pixels = {}}),
              ThrowsMessage<ConfigError>(HasSubstr("height 0")));
  EXPECT_THAT(events(), SizeIs(2));
}

// The vectors of RFC 3720, appendix B.4, and the usual check value.
TEST(Crc32cTest, EqualsKnownVectors) {
  std::string ascending;
  std::string descending;
  for (int i = 0; i < 32; ++i) {
    ascending += static_cast<char>(i);
    descending += static_cast<char>(31 - i);
  }
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8a9136aaU);
  EXPECT_EQ(crc32c(std::string(32, '\xff')), 0x62a8ab43U);
  EXPECT_EQ(crc32c(ascending), 0x46dd794eU);
  EXPECT_EQ(crc32c(descending), 0x113fdb5cU);
  EXPECT_EQ(crc32c("123456789"), 0xe3069283U);
  EXPECT_EQ(crc32c(""), 0U);
}

TEST(Crc32cTest, MaskRotatesAndAdds) {
  // Rotated right by 15 bits, plus 0xa282ead8.
  EXPECT_EQ(masked_crc32c(""), 0xa282ead8U);
  EXPECT_EQ(masked_crc32c("123456789"), ((0xe3069283U >> 15) | (0xe3069283U << 17)) + 0xa282ead8U);
}

}  // namespace
}  // namespace lockstep::track
