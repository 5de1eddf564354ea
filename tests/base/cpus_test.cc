// Goal: lists of processors are read as the kernel writes them, what cannot be is refused by name,
// and asking leaves the caller's mask alone. Method: texts good and bad; the mask before and after.

#include "base/cpus.h"

#include <vector>

#include <gtest/gtest.h>
#include <sched.h>

namespace isthmus {
namespace {

TEST(Cpus, ListsAreReadAndWritten) {
  const Result<std::vector<int>> cpus = parse_cpus("8,0-3,2,5");
  ASSERT_TRUE(cpus.ok()) << cpus.error().message;
  EXPECT_EQ(*cpus, (std::vector<int>{0, 1, 2, 3, 5, 8}));
  EXPECT_EQ(cpus_text(*cpus), "0-3,5,8");
  EXPECT_EQ(cpus_text({}), "none");
  EXPECT_EQ(*parse_cpus("8191"), std::vector<int>{8191});
}

TEST(Cpus, MalformedListsAreRefused) {
  for (const char* text : {"", ",", "0,", ",0", "-1", "1-", "3-1", "a", "0 1", "0-3-5", "8192",
                           "0-99999999999", "1,,2"}) {
    const Result<std::vector<int>> cpus = parse_cpus(text);
    ASSERT_FALSE(cpus.ok()) << text;
    EXPECT_EQ(cpus.error().code, Code::kInvalidArgument);
    EXPECT_NE(cpus.error().message.find("as in 0-3,8"), std::string::npos);
  }
}

TEST(Cpus, WhatIsNotPermittedIsNamed) {
  EXPECT_TRUE(check_own_cpus("").ok());
  const Result<std::vector<int>> permitted = permitted_cpus();
  ASSERT_TRUE(permitted.ok()) << permitted.error().message;
  ASSERT_FALSE(permitted->empty());
  EXPECT_TRUE(check_own_cpus(cpus_text(*permitted)).ok());
  const Status refused = check_own_cpus("8191");
  if (permitted->back() == 8191) {
    GTEST_SKIP() << "this machine has every processor there can be";
  }
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().message,
            "ISTHMUS_CPUS: processors 8191 are not permitted to this process; permitted are " +
                cpus_text(*permitted));
  const Status bad = check_own_cpus("0-");
  ASSERT_FALSE(bad.ok());
  EXPECT_EQ(bad.error().message.find("ISTHMUS_CPUS: '0-'"), 0U) << bad.error().message;
}

TEST(Cpus, AskingLeavesTheCallersMaskAlone) {
  cpu_set_t before;
  ASSERT_EQ(::sched_getaffinity(0, sizeof before, &before), 0);
  int first = 0;
  while (!CPU_ISSET(static_cast<std::size_t>(first), &before)) {
    ++first;
  }
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(static_cast<std::size_t>(first), &one);
  ASSERT_EQ(::sched_setaffinity(0, sizeof one, &one), 0);
  const Result<std::vector<int>> permitted = permitted_cpus();
  cpu_set_t after;
  const int read = ::sched_getaffinity(0, sizeof after, &after);
  ASSERT_EQ(::sched_setaffinity(0, sizeof before, &before), 0);
  ASSERT_EQ(read, 0);
  EXPECT_TRUE(CPU_EQUAL(&one, &after));
  ASSERT_TRUE(permitted.ok());
  EXPECT_GE(permitted->size(), static_cast<std::size_t>(CPU_COUNT(&before)));
}

}  // namespace
}  // namespace isthmus
