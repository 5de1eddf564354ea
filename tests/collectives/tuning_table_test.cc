// Goal: a tuning table survives its file, nonsense and another machine's numbers are refused with a
// reason, the nearest part is found, and a choice follows what was measured. Method: tables made by
// hand, files in a folder of the test.

#include "collectives/tuning_table.h"

#include <cerrno>
#include <fstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/temp_folder.h"
#include "base/version.h"
#include "collectives/select.h"

namespace isthmus {
namespace {

TunedRanks part(int ranks, double sharing) {
  TunedRanks out;
  out.ranks = ranks;
  out.costs.sharing = sharing;
  out.costs.flag_us = 0.125 * ranks;
  out.costs.read = RateCurve::flat(77.0);
  out.costs.measured = true;
  out.algorithms = {{OpKind::kAllReduce, "flat_all_reduce", {{48, 0.5, 0.5}, {768, 2.0, 1.5}}},
                    {OpKind::kAllReduce, "of_a_later_version", {{64, 1.0, 1.0}}}};
  return out;
}

TuningTable table() {
  TuningTable out;
  out.version = std::string(kVersion);
  out.machine = MachineKey::read();
  out.ranks = {part(2, 1.0), part(8, 1.0), part(8, 4.0)};
  out.between = LinkClass{21.5, 84.0};
  return out;
}

TEST(TuningTableTest, RoundTrip) {
  const TuningTable one = table();
  for (const int indent : {-1, 1}) {
    const Result<TuningTable> again = TuningTable::from_json(one.to_json(indent));
    ASSERT_TRUE(again.ok()) << again.error().message;
    EXPECT_EQ(*again, one);
  }
  EXPECT_EQ(one.to_json().find('\n'), std::string::npos);
}

// Nodes without each other say nothing of what is between, and a table may say only that.
TEST(TuningTableTest, EitherPartMayBeMissing) {
  TuningTable inside = table();
  inside.between.reset();
  EXPECT_EQ(TuningTable::from_json(inside.to_json()).value(), inside);
  TuningTable between = table();
  between.ranks.clear();
  EXPECT_EQ(TuningTable::from_json(between.to_json()).value(), between);
  EXPECT_EQ(between.nearest(2, 1.0), nullptr);
  between.between.reset();
  EXPECT_FALSE(TuningTable::from_json(between.to_json()).ok());
}

TEST(TuningTableTest, RefusesNonsense) {
  const std::string good = table().to_json();
  const auto with = [&](const std::string& what, const std::string& other) {
    std::string text = good;
    const std::size_t at = text.find(what);
    EXPECT_NE(at, std::string::npos) << what;
    return at == std::string::npos ? text : text.replace(at, what.size(), other);
  };
  for (const std::string& text :
       {std::string(), std::string("{"), std::string("[]"), std::string("{}"),
        good.substr(0, good.size() / 2), with("\"format\":1", "\"format\":99"),
        with("\"ranks\":[", "\"rank\":["), with("\"ranks\":2", "\"ranks\":1"),
        with("\"flag_us\":0.25", "\"flag_us\":-1"), with("\"flag_us\":0.25", "\"flag_us\":\"x\""),
        with("16384.0", "99999999999.0"), with("\"ranks_per_processor\":1.0", "\"sharing\":1.0"),
        with("all_reduce", "no_operation"), with("[768,2.0,1.5]", "[48,2.0,1.5]"),
        with("\"alpha_us\":21.5", "\"alpha_us\":-1"), with("\"alpha_us\":21.5", "\"alpha\":1"),
        with("[768,2.0,1.5]", "[768,2.0,0.0]"), with("[768,2.0,1.5]", "[768,2.0]"),
        std::string(TuningTable::kTextBytesMax + 1, ' ')}) {
    const Result<TuningTable> got = TuningTable::from_json(text);
    ASSERT_FALSE(got.ok()) << text.substr(0, 200);
    EXPECT_EQ(got.error().code, Code::kInvalidArgument);
    EXPECT_NE(got.error().message.find("isthmus tune"), std::string::npos) << got.error().message;
  }
}

TEST(TuningTableTest, AnotherMachineIsNamed) {
  const MachineKey here = MachineKey::read();
  EXPECT_GE(here.processors, 1);
  EXPECT_EQ(table().why_foreign(here), "");
  MachineKey other = here;
  other.processors += 1;
  other.processor = "another processor";
  const std::string why = table().why_foreign(other);
  EXPECT_NE(why.find("another processor"), std::string::npos) << why;
  EXPECT_NE(why.find(here.text()), std::string::npos) << why;
  TuningTable old = table();
  old.version = "0.0.1";
  EXPECT_NE(old.why_foreign(here).find("0.0.1"), std::string::npos);
}

TEST(TuningTableTest, ReadsFiles) {
  const TempFolder folder = TempFolder::create("tuning").value();
  const auto write = [&](const char* name, const std::string& text) {
    std::string path = folder.path() + "/" + name;
    std::ofstream(path) << text;
    return path;
  };
  EXPECT_EQ(read_tuning(write("good", table().to_json(1))).value(), table());
  EXPECT_EQ(read_tuning(folder.path() + "/none").error().sys_errno, ENOENT);
  EXPECT_EQ(read_tuning(write("bad", "{]")).error().code, Code::kInvalidArgument);
  TuningTable foreign = table();
  foreign.machine.l2_bytes += 1;
  EXPECT_EQ(read_tuning(write("foreign", foreign.to_json())).error().code, Code::kUnsupported);
}

TEST(TuningTableTest, NearestKeepsCrowdedApart) {
  const TuningTable one = table();
  EXPECT_EQ(one.nearest(2, 1.0), &one.ranks[0]);
  EXPECT_EQ(one.nearest(3, 1.0), &one.ranks[0]);
  EXPECT_EQ(one.nearest(64, 1.0), &one.ranks[1]);
  EXPECT_EQ(one.nearest(2, 2.0), &one.ranks[2]);
  TuningTable free_only = one;
  free_only.ranks.pop_back();
  EXPECT_EQ(free_only.nearest(8, 1.5), nullptr);
}

TEST(TuningTableTest, FactorsGoFromSizeToSize) {
  const TunedRanks one = part(2, 1.0);
  const auto factor = [&](std::size_t bytes) {
    return one.factor(OpKind::kAllReduce, "flat_all_reduce", bytes);
  };
  EXPECT_DOUBLE_EQ(factor(8), 0.5);
  EXPECT_DOUBLE_EQ(factor(48), 0.5);
  EXPECT_DOUBLE_EQ(factor(192), 1.0);  // Half way: 48 x 4 and 768 / 4.
  EXPECT_DOUBLE_EQ(factor(768), 1.5);
  EXPECT_DOUBLE_EQ(factor(1 << 20), 1.5);
  EXPECT_DOUBLE_EQ(one.factor(OpKind::kReduce, "flat_all_reduce", 48), 1.0);
  EXPECT_FALSE(one.measured(OpKind::kAllReduce, "slice_all_reduce"));
}

TEST(TuningTableTest, TheChoiceFollowsWhatWasMeasured) {
  const Topology topology = Topology::grid(1, 2);
  const Payload payload{.bytes = std::size_t{1} << 20};
  for (const char* fast : {"flat_all_reduce", "slice_all_reduce"}) {
    TunedRanks tuned;
    for (const char* name : {"flat_all_reduce", "slice_all_reduce"}) {
      const double factor = name == std::string(fast) ? 0.5 : 2.0;
      tuned.algorithms.push_back({OpKind::kAllReduce, name, {{1024, 1.0, factor}}});
    }
    const Choice choice =
        select_algorithm(topology, OpKind::kAllReduce, payload, "", &tuned).value();
    EXPECT_EQ(choice.algorithm->name, fast);
    const Prediction measured = predict(*choice.algorithm, topology, payload, &tuned);
    const Prediction plain = predict(*choice.algorithm, topology, payload, nullptr);
    EXPECT_TRUE(measured.measured);
    EXPECT_FALSE(plain.measured);
    EXPECT_DOUBLE_EQ(measured.us(), 0.5 * plain.us());
    // Not over nodes: there the algorithm is another.
    EXPECT_FALSE(predict(*find_algorithm(OpKind::kAllReduce, "ring_all_reduce"),
                         Topology::grid(2, 1), payload, &tuned)
                     .measured);
  }
}

}  // namespace
}  // namespace isthmus
