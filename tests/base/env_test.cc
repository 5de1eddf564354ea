// Goal: variables are read once, with their range, and a mistyped name gets a suggestion.
// Method: Env::parse on made-up environments.

#include "base/env.h"

#include <algorithm>
#include <array>

#include <gtest/gtest.h>

namespace isthmus {
namespace {

TEST(Env, ReadsValuesAndIgnoresForeignNames) {
  const std::array<const char*, 4> environment = {"ISTHMUS_TIMEOUT_S=7", "ISTHMUS_SHM=off",
                                                  "ISTHMUS_ALGO=ring_all_reduce", "HOME=/"};
  std::vector<std::string> warnings;
  const Env env = Env::parse(environment, &warnings);
  EXPECT_EQ(env.TIMEOUT_S, 7);
  EXPECT_FALSE(env.SHM);
  EXPECT_EQ(env.ALGO, "ring_all_reduce");
  EXPECT_TRUE(warnings.empty());
}

TEST(Env, KeepsTheDefaultAndSaysWhyOnBadValues) {
  const std::array<const char*, 3> environment = {"ISTHMUS_TIMEOUT_S=soon", "ISTHMUS_STAGING_MB=0",
                                                  "ISTHMUS_CRC=maybe"};
  std::vector<std::string> warnings;
  const Env env = Env::parse(environment, &warnings);
  EXPECT_EQ(env.TIMEOUT_S, Env{}.TIMEOUT_S);
  EXPECT_EQ(env.STAGING_MB, Env{}.STAGING_MB);
  ASSERT_EQ(warnings.size(), 3U);
  EXPECT_NE(warnings[0].find("'soon'"), std::string::npos);
  EXPECT_NE(warnings[1].find("1 to 1024"), std::string::npos);
}

TEST(Env, SuggestsANearName) {
  const std::array<const char*, 2> environment = {"ISTHMUS_TIMEOUTS=7", "ISTHMUS_SOMETHING_ELSE=1"};
  std::vector<std::string> warnings;
  Env::parse(environment, &warnings);
  ASSERT_EQ(warnings.size(), 2U);
  EXPECT_NE(warnings[0].find("did you mean ISTHMUS_TIMEOUT_S?"), std::string::npos) << warnings[0];
  EXPECT_EQ(warnings[1].find("did you mean"), std::string::npos) << warnings[1];
}

TEST(Env, TableAndValuesGoTogether) {
  EXPECT_EQ(env_table().size(), env_values(Env{}).size());
  for (const EnvRow& row : env_table()) {
    EXPECT_TRUE(row.name.starts_with("ISTHMUS_"));
    EXPECT_FALSE(row.text.empty());
  }
}

TEST(Env, ScheduleHashFollowsWhatChangesSchedules) {
  Env one;
  Env two;
  EXPECT_EQ(one.schedule_hash(), two.schedule_hash());
  two.ALGO = "slot_all_reduce";
  EXPECT_NE(one.schedule_hash(), two.schedule_hash());
  two = one;
  two.LOG = "debug";
  EXPECT_EQ(one.schedule_hash(), two.schedule_hash());
}

}  // namespace
}  // namespace isthmus
