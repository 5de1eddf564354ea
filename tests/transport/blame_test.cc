// Goal: the rank to blame is found among those that wait for one another.
// Method: small graphs, one a test.

#include "transport/blame.h"

#include <map>

#include <gtest/gtest.h>

namespace isthmus {
namespace {

using Waits = std::map<int, std::vector<int>>;

std::vector<int> blamed_by(int self, const Waits& waits) {
  const auto of = [&](int rank) {
    const auto found = waits.find(rank);
    return found == waits.end() ? std::vector<int>() : found->second;
  };
  return blamed(self, of(self), of);
}

TEST(Blame, ARankThatDoesNotWait) {
  EXPECT_EQ(blamed_by(0, {{0, {3}}}), std::vector<int>({3}));
}

TEST(Blame, TheEndOfAChain) {
  EXPECT_EQ(blamed_by(0, {{0, {1}}, {1, {2}}, {2, {3}}}), std::vector<int>({3}));
}

// Rank 2 waits for 3 and for 0, and 0, by way of 1, for 3 and for 2 itself.
TEST(Blame, OneBehindSeveralWaits) {
  const Waits waits = {{2, {0, 3}}, {0, {2, 1}}, {1, {0, 3}}};
  EXPECT_EQ(blamed_by(2, waits), std::vector<int>({3}));
  EXPECT_EQ(blamed_by(0, waits), std::vector<int>({3}));
  EXPECT_EQ(blamed_by(1, waits), std::vector<int>({3}));
}

TEST(Blame, EachThatDoesNotWait) {
  EXPECT_EQ(blamed_by(0, {{0, {1, 2, 3}}, {2, {5, 0}}}), std::vector<int>({1, 3, 5}));
}

TEST(Blame, AllWhereEverybodyWaits) {
  EXPECT_EQ(blamed_by(0, {{0, {1, 2}}, {1, {2}}, {2, {0}}}), std::vector<int>({1, 2}));
}

TEST(Blame, NobodyWhereNobodyIsWaitedFor) {
  EXPECT_EQ(blamed_by(0, {}), std::vector<int>());
}

}  // namespace
}  // namespace isthmus
