// Goal: net_plugin_perf's checks let an honest plug-in pass and catch each fault, and isthmus's own
// plug-in keeps NCCL's rules. Method: a plain plug-in of this folder, with one fault at a time.
#include "perf/net_plugin/checks.h"

#include <cstdlib>
#include <string>

#include <gtest/gtest.h>

#include "perf/net_plugin/net_plugin.h"

namespace isthmus::net_plugin {
namespace {

// Paths, of the build.
constexpr const char* kReference = REFERENCE_PLUGIN;
constexpr const char* kIsthmus = ISTHMUS_PLUGIN;

// A fault that hangs is a verdict after so long; the honest need a part of a second.
constexpr int kLimitS = 4;

Verdict judge_with(const char* fault, const std::string& name, int version) {
  for (Check check : checks()) {
    if (name == check.name) {
      check.limit_s = kLimitS;
      ::setenv("REFERENCE_FAULT", fault, 1);
      return judge(check, kReference, version);
    }
  }
  ADD_FAILURE() << "no check " << name;
  return {};
}

void expect_all_kept(const char* plugin, int version) {
  for (const Check& check : checks()) {
    if (std::string("gib") == check.name) {
      continue;  // seconds: `make long` has it
    }
    const Verdict verdict = judge(check, plugin, version);
    EXPECT_TRUE(verdict.passed || verdict.skipped)
        << "v" << version << " " << check.name << ": " << verdict.text;
  }
}

TEST(Checks, TheHonestPass) {
  const Result<std::vector<int>> versions = NetPlugin::versions(kReference);
  ASSERT_TRUE(versions.ok()) << versions.error().message;
  EXPECT_EQ(*versions, (std::vector<int>{12, 8}));
  ::unsetenv("REFERENCE_FAULT");
  for (const int version : *versions) {
    expect_all_kept(kReference, version);
  }
}

TEST(Checks, IsthmusKeepsNcclsRules) {
  const Result<std::vector<int>> versions = NetPlugin::versions(kIsthmus);
  ASSERT_TRUE(versions.ok()) << versions.error().message;
  EXPECT_EQ(*versions, (std::vector<int>{12, 11, 10, 9, 8, 7, 6}));
  expect_all_kept(kIsthmus, 12);
}

struct Fault {
  const char* name;
  const char* check;
};

class Caught : public testing::TestWithParam<Fault> {};

TEST_P(Caught, ByItsCheck) {
  const Verdict verdict = judge_with(GetParam().name, GetParam().check, 12);
  EXPECT_FALSE(verdict.passed || verdict.skipped) << verdict.text;
  EXPECT_FALSE(verdict.text.empty());
}

INSTANTIATE_TEST_SUITE_P(
    Faults, Caught,
    testing::Values(Fault{"waits_in_connect", "joins"}, Fault{"waits_for_strangers", "strangers"},
                    Fault{"waits_in_send", "posts"}, Fault{"forgets_request", "put_off"},
                    Fault{"refuses_when_full", "put_off"}, Fault{"flips", "order"},
                    Fault{"wrong_size", "less"}, Fault{"overruns", "more"},
                    Fault{"loses_nothing", "nothing"}, Fault{"keeps_the_hint", "hint"},
                    Fault{"done_early", "reuse"}, Fault{"takes_cuda", "register"},
                    Fault{"waits_in_close", "close_in_flight"}, Fault{"inherits", "descriptors"},
                    Fault{"deaf", "dead_peer"}, Fault{"prints", "quiet"},
                    Fault{"no_speed", "properties"}),
    [](const auto& one) { return one.param.name; });

TEST(Checks, ACrashIsAVerdict) {
  const Verdict verdict = judge_with("crashes", "joins", 8);
  EXPECT_NE(verdict.text.find("died of signal 6"), std::string::npos) << verdict.text;
}

TEST(Checks, WhatIsNoPluginIsRefused) {
  EXPECT_FALSE(NetPlugin::versions("/nowhere/libnccl-net-none.so").ok());
  const auto wrong = NetPlugin::load(kReference, 9);
  ASSERT_FALSE(wrong.ok());
  EXPECT_NE(wrong.error().message.find("it has: v12, v8"), std::string::npos);
}

}  // namespace
}  // namespace isthmus::net_plugin
