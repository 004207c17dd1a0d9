#include "base/network.h"

#include <gtest/gtest.h>
#include <netdb.h>

namespace lockstep::base {
namespace {

TEST(HostLookupTest, AnAddressIsKnown) {
  EXPECT_EQ(find_unknown_host("127.0.0.1", kHostPatience), std::nullopt);
  EXPECT_EQ(find_unknown_host("::1", kHostPatience), std::nullopt);
}

TEST(HostLookupTest, WhatIsNoNameIsNotKnown) {
  // An empty label: no server is asked.
  EXPECT_EQ(find_unknown_host("no..host", std::chrono::milliseconds(0)), "Name or service not known");
}

TEST(HostLookupTest, OnlyAnAnswerIsFinal) {
  for (const int code : {EAI_NONAME, EAI_FAIL, EAI_NODATA, EAI_ADDRFAMILY, EAI_SERVICE}) {
    EXPECT_TRUE(is_unknown_host(code)) << lookup_error(code);
  }
  for (const int code : {0, EAI_AGAIN, EAI_MEMORY, EAI_SYSTEM}) EXPECT_FALSE(is_unknown_host(code)) << code;
}

}  // namespace
}  // namespace lockstep::base
