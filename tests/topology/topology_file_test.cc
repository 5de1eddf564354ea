// Goal: a topology file keeps a Topology exactly, in both of its forms, and a reader that meets
// anything else says which key, what it expected and what it got. Method: round trips of even,
// uneven and scattered groups; a table of single mistakes, each with the words that name it.

#include "topology/topology_file.h"

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

namespace isthmus {
namespace {

Topology measured(Topology topology) {
  NodeCosts costs;
  costs.flag_us = 0.1 + 1.0 / 3.0;
  costs.read.us_per_mib = {1.25, 2.5, 1e-3, 77.0};
  costs.sharing = 1.5;
  costs.measured = true;
  topology.set_node_costs(costs);
  topology.set_between({12.3, 456.789});
  return topology;
}

Topology in_racks(Topology topology) {
  topology.set_across({45.6, 3000.125});
  return topology;
}

TEST(TopologyFileTest, KeepsATopology) {
  Topology pulled = Topology::grid(1, 4);
  pulled.set_pulls(true);
  for (const Topology& topology :
       {Topology::grid(1, 1), Topology::grid(4, 8), pulled,
        Topology::make(std::array{0, 0, 1, 2, 2, 2}, {true, true, false}).value(),
        Topology::make(std::array{0, 1, 1, 0, 2}, {false, true, true}).value(),
        Topology::make(std::array{0, 1, 0, 1, 2, 2}).value(), in_racks(Topology::grid(8, 2, 3)),
        in_racks(
            Topology::make(std::array{0, 1, 2, 2, 3}, {}, std::array{0, 1, 0, 0, 1}).value())}) {
    const Topology kept = measured(topology);
    const Result<TopologyFile> file =
        TopologyFile::from_json(TopologyFile::describe(kept).to_json());
    ASSERT_TRUE(file.ok()) << file.error().message;
    EXPECT_EQ(*file, TopologyFile::describe(kept));
    EXPECT_EQ(file->topology().value(), kept);
  }
}

TEST(TopologyFileTest, OneNodeStandsForMany) {
  const TopologyFile file =
      TopologyFile::from_json(
          R"({"isthmus_topology": 1, "node": {"name": "a", "ranks": 8, "rails": [{"gbit_per_s": 10},
              {"name": "eth1", "gbit_per_s": 2.5}]}, "count": 16384,
              "inside": {"alpha_us": 1, "beta_us_per_mib": 50, "gamma_us_per_mib": 25},
              "between": {"alpha_us": 30, "beta_us_per_mib": 671}})")
          .value();
  EXPECT_EQ(file.nodes[0].rails[1].name, "eth1");
  EXPECT_EQ(TopologyFile::from_json(file.to_json()).value(), file);
  const Topology whole = file.topology().value();
  Topology expected = Topology::grid(16384, 8);
  expected.set_links({1.0, 50.0}, {30.0, 671.0}, 25.0);
  expected.set_across({30.0, 671.0});
  EXPECT_EQ(whole, expected);
  EXPECT_EQ(file.topology(64).value().nodes(), 8);
  EXPECT_FALSE(file.topology(63).ok());
}

TEST(TopologyFileTest, NodesShareARack) {
  const TopologyFile counted =
      TopologyFile::from_json(
          R"({"isthmus_topology": 1, "node": {"ranks": 2}, "count": 7, "nodes_per_rack": 4,
              "between": {"alpha_us": 5, "beta_us_per_mib": 84},
              "across": {"alpha_us": 9, "beta_us_per_mib": 168}})")
          .value();
  EXPECT_EQ(TopologyFile::from_json(counted.to_json()).value(), counted);
  Topology expected = Topology::grid(7, 2, 4);
  expected.set_between({5.0, 84.0});
  expected.set_across({9.0, 168.0});
  EXPECT_EQ(counted.topology().value(), expected);
  EXPECT_EQ(counted.topology(32).value().racks(), 4);
  const Topology listed =
      TopologyFile::from_json(
          R"({"isthmus_topology": 1, "between": {"alpha_us": 5, "beta_us_per_mib": 84}, "nodes": [
              {"ranks": 1, "rack": "b"}, {"ranks": 2, "rack": "a"}, {"ranks": 1, "rack": "b"}]})")
          .value()
          .topology()
          .value();
  EXPECT_EQ(listed.racks(), 2);
  EXPECT_EQ(listed.nodes_of_rack(0), 2);
  EXPECT_EQ(listed.node_of(3), 1);
  EXPECT_EQ(listed.across().beta_us_per_mib, 84.0);  // where nothing else is said
}

TEST(TopologyFileTest, OfListedNodesTheFirstRanksAreTaken) {
  const TopologyFile file = TopologyFile::describe(Topology::grid(3, 4));
  EXPECT_EQ(file.topology(6).value().locals(1), 2);
  const Result<Topology> many = file.topology(13);
  ASSERT_FALSE(many.ok());
  EXPECT_NE(many.error().message.find("lists 12"), std::string::npos) << many.error().message;
}

struct Mistake {
  std::string_view text;
  std::vector<std::string_view> words;
};

TEST(TopologyFileTest, MistakesAreNamed) {
  const std::vector<Mistake> mistakes = {
      {"", {"line 1"}},
      {"{", {"line 1, column 2"}},
      {"[]", {"the whole: expected an object, got []"}},
      {"{}", {"\"isthmus_topology\" in it"}},
      {R"({"isthmus_topology": 2, "nodes": []})", {"isthmus_topology: ", "format, 1", "got 2"}},
      {R"({"isthmus_topology": 1})", {"either \"nodes\""}},
      {R"({"isthmus_topology": 1, "nodes": []})", {"nodes: expected at least one node"}},
      {R"({"isthmus_topology": 1, "nodes": 3})", {"nodes: expected a list, got 3"}},
      {R"({"isthmus_topology": 1, "nodes": [{}]})", {"nodes[0]: expected \"ranks\" in it"}},
      {R"({"isthmus_topology": 1, "nodes": [{"ranks": 0}]})", {"nodes[0].ranks: ", "from 1 to"}},
      {R"({"isthmus_topology": 1, "nodes": [{"ranks": 1.5}]})", {"nodes[0].ranks", "got 1.5"}},
      {R"({"isthmus_topology": 1, "nodes": [{"ranks": []}]})", {"nodes[0].ranks", "one rank"}},
      {R"({"isthmus_topology": 1, "nodes": [{"ranks": 2, "maped": true}]})",
       {"nodes[0].maped: no such key", "did you mean \"mapped\"?"}},
      {R"({"isthmus_topology": 1, "nodes": [{"ranks": 2, "mapped": 1}]})", {"true or false"}},
      {R"({"isthmus_topology": 1, "nodes": [{"ranks": 2, "rails": [{"gbit_per_s": 0}]}]})",
       {"nodes[0].rails[0].gbit_per_s", "above 0"}},
      {R"({"isthmus_topology": 1, "nodes": [{"ranks": 2}], "count": 2})", {"count: expected"}},
      {R"({"isthmus_topology": 1, "nodes": [{"ranks": 2}], "nodes_per_rack": 2})",
       {"nodes_per_rack: expected \"rack\" of each node", "got 2"}},
      {R"({"isthmus_topology": 1, "node": {"ranks": 2, "rack": "a"}, "count": 2})",
       {"node.rack: expected \"nodes_per_rack\""}},
      {R"({"isthmus_topology": 1, "node": {"ranks": 2}, "count": 2, "nodes_per_rack": 0})",
       {"nodes_per_rack: ", "from 1 to"}},
      {R"({"isthmus_topology": 1, "nodes": [{"ranks": 2}], "across": {"beta_us_per_mib": 1}})",
       {"across: expected \"alpha_us\""}},
      {R"({"isthmus_topology": 1, "node": {"ranks": 2}})", {"\"count\" in it"}},
      {R"({"isthmus_topology": 1, "node": {"ranks": 1048576}, "count": 2})",
       {"a number of nodes, 1, got 2"}},
      {R"({"isthmus_topology": 1, "node": {"ranks": [0]}, "count": 2})", {"node.ranks"}},
      {R"({"isthmus_topology": 1, "nodes": [{"ranks": 2}], "between": {"alpha_us": -1}})",
       {"between.alpha_us", "not negative", "got -1"}},
      {R"({"isthmus_topology": 1, "nodes": [{"ranks": 2}], "between": {"alpha_us": 1}})",
       {"between: expected \"beta_us_per_mib\""}},
      {R"({"isthmus_topology": 1, "nodes": [{"ranks": 2}], "inside": {"copy": {"bytes": [1],
          "us_per_mib": [1]}}})",
       {"inside.copy.bytes", "4 numbers"}},
      {R"({"isthmus_topology": 1, "nodes": [{"ranks": 2}], "inside": {"copy": {"bytes": [4,3,2,1],
          "us_per_mib": [1,1,1,1]}}})",
       {"inside.copy: expected ascending bytes"}},
      {R"({"isthmus_topology": 1, "nodes": [{"ranks": 2}],
          "inside": {"ranks_per_processor": 0.5}})",
       {"inside.ranks_per_processor", "at least 1"}},
  };
  for (const Mistake& mistake : mistakes) {
    const Result<TopologyFile> file = TopologyFile::from_json(mistake.text);
    ASSERT_FALSE(file.ok()) << mistake.text;
    EXPECT_EQ(file.error().code, Code::kInvalidArgument);
    for (const std::string_view word : mistake.words) {
      EXPECT_NE(file.error().message.find(word), std::string::npos)
          << mistake.text << "\n lacks '" << word << "': " << file.error().message;
    }
  }
}

TEST(TopologyFileTest, RanksAreOnOneNodeEach) {
  for (const char* text :
       {R"({"isthmus_topology": 1, "nodes": [{"ranks": [0, 1]}, {"ranks": [1]}]})",
        R"({"isthmus_topology": 1, "nodes": [{"ranks": [0, 2]}]})"}) {
    const Result<Topology> topology = TopologyFile::from_json(text).value().topology();
    ASSERT_FALSE(topology.ok()) << text;
    EXPECT_NE(topology.error().message.find("on one node"), std::string::npos);
  }
}

TEST(TopologyFileTest, ErrorsNameTheFile) {
  const Result<TopologyFile> missing = TopologyFile::read("/nonexistent/topology.json");
  ASSERT_FALSE(missing.ok());
  EXPECT_EQ(missing.error().code, Code::kIo);
  EXPECT_NE(missing.error().message.find("/nonexistent/topology.json"), std::string::npos);
}

}  // namespace
}  // namespace isthmus
