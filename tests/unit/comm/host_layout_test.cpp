#include "comm/host_layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "comm/shm/peer.h"

namespace lockstep::comm {
namespace {

using testing::ElementsAre;

TEST(HostLayoutTest, RanksOfAHostNeedNotFollowEachOther) {
  const HostLayout layout = layout_of({"b", "a", "b", "c", "b"});
  EXPECT_THAT(layout.hosts, ElementsAre(ElementsAre(0, 2, 4), ElementsAre(1), ElementsAre(3)));
  EXPECT_THAT(layout.host_of, ElementsAre(0, 1, 0, 2, 0));
  EXPECT_THAT(layout.local_rank_of, ElementsAre(0, 0, 1, 0, 2));
  EXPECT_EQ(layout.most_ranks_on_a_host(), 3);
  EXPECT_FALSE(layout.is_regular());
}

TEST(HostLayoutTest, RegularMeansEqualAndInOrder) {
  EXPECT_TRUE(layout_of({"a", "a", "b", "b"}).is_regular());
  EXPECT_TRUE(layout_of({"a", "b", "c"}).is_regular());
  EXPECT_FALSE(layout_of({"a", "b", "a", "b"}).is_regular());
  EXPECT_FALSE(layout_of({"a", "a", "b"}).is_regular());
  EXPECT_FALSE(layout_of({"a", "b", "b"}).is_regular());
}

TEST(HostLayoutTest, IdentityIsStableAndSaysMoreThanAName) {
  EXPECT_EQ(shm::host_identity(), shm::host_identity());
  EXPECT_GT(shm::host_identity().size(), 40u);
}

}  // namespace
}  // namespace lockstep::comm
