#include "track/crc32c.h"

#include <gtest/gtest.h>

#include <string>

namespace lockstep::track {
namespace {

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
