#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "topology/topology.h"

namespace isthmus {

// A network interface that carries messages between nodes.
struct Rail {
  std::string name;
  double gbit_per_s = 0.0;

  bool operator==(const Rail&) const = default;
};

// One node as a file describes it.
struct NodeShape {
  std::string name;        // for people; may be empty
  int ranks = 1;           // how many
  bool mapped = true;      // they share memory
  std::vector<int> which;  // their numbers; empty: they follow those of the node before
  std::vector<Rail> rails;
  std::string rack;  // nodes of equal text share one

  bool operator==(const NodeShape&) const = default;
};

// A cluster in a file: the form in which a Topology is kept, read for planning and written by
// `isthmus info --save`. Either every node is listed, or one stands for `count` equal ones.
// docs/topology.md is the schema. Plain values.
struct TopologyFile {
  static constexpr int kFormat = 1;

  // A larger text is no topology: 131,072 nodes listed one by one stay below.
  static constexpr std::size_t kTextBytesMax = std::size_t{64} << 20;

  std::vector<NodeShape> nodes;  // at least one
  int count = 0;                 // of nodes like the only one; 0: all are listed
  int nodes_per_rack = 0;        // of those; 0: one rack
  bool pulls = false;            // Topology::pulls()
  NodeCosts inside;
  LinkClass between = Topology::kBetweenDefault;
  LinkClass across = Topology::kBetweenDefault;

  // Every node listed, with the numbers of its ranks where they are not in a row, and that of its
  // rack where there are several.
  static TopologyFile describe(const Topology& topology);

  // With `ranks` above 0 for so many of them: a counted node is there as often as that takes, of
  // listed ones the first ranks are taken. Fails with kInvalidArgument where that cannot be.
  Result<Topology> topology(int ranks = 0) const;

  // Ends in a newline.
  std::string to_json() const;

  // Strict: an unknown key, a missing one and a value that makes no sense are refused with
  // kInvalidArgument and a sentence that names the key, what was expected and what is there.
  static Result<TopologyFile> from_json(std::string_view text);

  // Fails with kIo when the file cannot be read; errors name the file.
  static Result<TopologyFile> read(const std::string& path);

  bool operator==(const TopologyFile&) const = default;

 private:
  std::vector<int> racks_of(const std::vector<int>& node_of) const;
};

// Microseconds a MiB at a rate, and back.
constexpr double us_per_mib_at(double gbit_per_s) {
  return 8388.608 / gbit_per_s;
}

}  // namespace isthmus
