#include "track/output_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/error.h>

#include "unit/track/file_size_limit.h"
#include "unit/track/run_folder.h"

namespace lockstep::track {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;
using testing::UnorderedElementsAre;

TEST(OutputFileTest, GrowsByRecordsAndGoesOnAtTheEnd) {
  const RunFolder folder;
  OutputFile::append_to(folder.path() / "f").append("one,");
  OutputFile::append_to(folder.path() / "f").append("two");
  EXPECT_EQ(folder.content_of("f"), "one,two");
}

TEST(OutputFileTest, ReplacesTheEndByALongerOrAShorterOne) {
  const RunFolder folder;
  OutputFile file = OutputFile::append_to(folder.path() / "f");
  file.append("keep,old");
  file.replace_from(5, "newer");
  EXPECT_EQ(folder.content_of("f"), "keep,newer");
  file.replace_from(5, "n");
  EXPECT_EQ(folder.content_of("f"), "keep,n");
  EXPECT_EQ(file.size(), 6);
}

TEST(OutputFileTest, TakesBackARecordThatDoesNotFit) {
  const RunFolder folder;
  OutputFile file = OutputFile::append_to(folder.path() / "f");
  file.append("whole,");
  {
    const FileSizeLimit limit(10);
    EXPECT_THAT(
        [&] { file.append("too long"); },
        ThrowsMessage<ConfigError>(AllOf(HasSubstr(folder.path() / "f"), HasSubstr("File too large"))));
    EXPECT_EQ(folder.content_of("f"), "whole,");
    file.append("fits");
  }
  file.append(",and later too");
  EXPECT_EQ(folder.content_of("f"), "whole,fits,and later too");
}

TEST(OutputFileTest, SaysThatADiskIsFull) {
  OutputFile file = OutputFile::append_to("/dev/full");
  EXPECT_THAT([&] { file.append("x"); },
              ThrowsMessage<ConfigError>(AllOf(HasSubstr("/dev/full"), HasSubstr("No space left"))));
}

TEST(OutputFileTest, CreatesOnlyWhatIsNotThere) {
  const RunFolder folder;
  EXPECT_TRUE(OutputFile::create(folder.path() / "f"));
  EXPECT_FALSE(OutputFile::create(folder.path() / "f"));
  EXPECT_THAT([&] { OutputFile::create(folder.path() / "absent" / "f"); },
              ThrowsMessage<ConfigError>(HasSubstr("No such file")));
}

TEST(SetAsideTest, TakesTheFirstFreeNumber) {
  const RunFolder folder;
  rename_old_file(folder.path() / "m.csv");
  folder.put("m.csv", "first");
  rename_old_file(folder.path() / "m.csv");
  folder.put("m.csv", "second");
  rename_old_file(folder.path() / "m.csv");
  EXPECT_THAT(folder.names(), UnorderedElementsAre("m.1.csv", "m.2.csv"));
  EXPECT_EQ(folder.content_of("m.1.csv"), "first");
  EXPECT_EQ(folder.content_of("m.2.csv"), "second");
}

}  // namespace
}  // namespace lockstep::track
