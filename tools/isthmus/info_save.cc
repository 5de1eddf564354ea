// `isthmus info --save`: a topology file of this machine, or of all nodes of the job that it is
// started in.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "base/env.h"
#include "collectives/tuning_table.h"
#include "collectives/world.h"
#include "tools/command_line/command_line.h"
#include "tools/isthmus/commands.h"
#include "tools/isthmus/link_probe.h"
#include "tools/isthmus/machine_facts.h"
#include "tools/isthmus/node_view.h"
#include "tools/isthmus/write_file.h"
#include "topology/machine.h"
#include "topology/topology_file.h"

namespace isthmus {
namespace {

constexpr double kMbitPerGbit = 1000.0;

// Interfaces that may carry messages to other nodes, where their drivers know how fast they are.
std::vector<Rail> rails_here() {
  std::vector<Rail> out;
  for (const Interface& interface : interfaces()) {
    const double mbit = static_cast<double>(interface.speed_mbit.value_or(0));
    if (interface.up && !interface.loopback && mbit > 0.0) {
      out.push_back({interface.name, mbit / kMbitPerGbit});
    }
  }
  return out;
}

// What was given, else measured, else known of the rails, else built in.
LinkClass between_of(const InfoOptions& options, const LinkClass* measured,
                     const std::vector<Rail>& rails) {
  LinkClass out = measured != nullptr ? *measured : Topology::kBetweenDefault;
  double gbit = options.between_gbit;
  if (gbit <= 0.0 && measured == nullptr) {
    for (const Rail& rail : rails) {
      gbit += rail.gbit_per_s;
    }
  }
  if (gbit > 0.0) {
    out.beta_us_per_mib = us_per_mib_at(gbit);
  }
  if (options.between_us >= 0.0) {
    out.alpha_us = options.between_us;
  }
  return out;
}

// What was given, else measured, else as wide as a node's.
LinkClass across_of(const InfoOptions& options, const LinkClass& otherwise) {
  LinkClass out = otherwise;
  if (options.across_gbit > 0.0) {
    out.beta_us_per_mib = us_per_mib_at(options.across_gbit);
  }
  if (options.across_us >= 0.0) {
    out.alpha_us = options.across_us;
  }
  return out;
}

std::string host_name() {
  const Result<Machine> machine = Machine::probe();
  return machine.ok() ? machine->host_name : std::string();
}

// --- One machine, no job ---

TopologyFile of_this_machine(const InfoOptions& options) {
  const int ranks = options.ranks > 0 ? options.ranks : processors_allowed();
  TopologyFile out;
  out.nodes.push_back({.name = host_name(),
                       .ranks = ranks,
                       .mapped = true,
                       .which = {},
                       .rails = rails_here(),
                       .rack = {}});
  out.count = options.nodes;
  out.nodes_per_rack = options.nodes_per_rack < options.nodes ? options.nodes_per_rack : 0;
  out.inside.sharing = ranks_per_processor(ranks);
  const std::string path = tuning_path();
  if (!path.empty()) {
    const Result<TuningTable> table = read_tuning(path);
    const double sharing = out.inside.sharing;
    const TunedRanks* tuned = table.ok() ? table->nearest(ranks, sharing) : nullptr;
    if (tuned != nullptr) {
      out.inside = tuned->costs;
      out.inside.sharing = sharing;
    }
  }
  out.between = between_of(options, nullptr, out.nodes[0].rails);
  out.across = across_of(options, out.between);
  return out;
}

// --- All nodes of a job ---

// What each node's first rank tells: a name, its rack's and rails, as a node of a topology file.
constexpr std::size_t kCardBytes = 4096;

using Card = std::array<char, kCardBytes>;

Card card_of_this_node() {
  TopologyFile one;
  one.nodes.push_back({.name = host_name(),
                       .ranks = 1,
                       .mapped = true,
                       .which = {},
                       .rails = {},
                       .rack = env().RACK_ID});
  one.nodes[0].rails = rails_here();
  std::string text = one.to_json();
  if (text.size() >= kCardBytes) {
    one.nodes[0].rails.clear();
    text = one.to_json();
  }
  Card card{};
  std::memcpy(card.data(), text.data(), std::min(text.size(), kCardBytes - 1));
  return card;
}

Result<TopologyFile> of_job(const InfoOptions& options, Communicator& group) {
  const Topology& topology = group.topology();
  const Card mine = card_of_this_node();
  std::vector<Card> cards(static_cast<std::size_t>(group.size()));
  ISTHMUS_TRY(group.all_gather(mine.data(), cards.data(), kCardBytes, DType::kByte));
  TopologyFile out = TopologyFile::describe(topology);
  for (int node = 0; node < topology.nodes(); ++node) {
    const Card& card = cards[static_cast<std::size_t>(topology.members(node).front())];
    ISTHMUS_ASSIGN(const TopologyFile told,
                   TopologyFile::from_json({card.data(), ::strnlen(card.data(), card.size())}));
    NodeShape& shape = out.nodes[static_cast<std::size_t>(node)];
    shape.name = told.nodes[0].name;
    shape.rails = told.nodes[0].rails;
    shape.rack = told.nodes[0].rack;
  }
  LinkClass measured;
  const bool several = topology.nodes() > 1;
  if (several) {
    ISTHMUS_ASSIGN(measured, probe_between(group));
  }
  out.between = between_of(options, several ? &measured : nullptr, out.nodes[0].rails);
  LinkClass across = out.between;
  if (topology.racks() > 1) {
    ISTHMUS_ASSIGN(across, probe_across(group));
  }
  out.across = across_of(options, across);
  return out;
}

double gbit_of(const LinkClass& link) {
  return link.beta_us_per_mib > 0.0 ? us_per_mib_at(link.beta_us_per_mib) : 0.0;
}

Status save(const InfoOptions& options, const TopologyFile& file) {
  ISTHMUS_ASSIGN(const Topology topology, file.topology());
  ISTHMUS_TRY(write_file(options.save, file.to_json()));
  fmt::print(
      "wrote {}: {} ranks on {} nodes; inside {}; between nodes {:.2f} us a message, {:.1f} "
      "us a MiB ({:.2f} Gbit/s)\n",
      options.save, topology.ranks(), topology.nodes(),
      file.inside.measured ? "measured" : "built-in costs", file.between.alpha_us,
      file.between.beta_us_per_mib, gbit_of(file.between));
  if (topology.racks() > 1) {
    fmt::print("{} racks; between them {:.2f} us a message, {:.1f} us a MiB ({:.2f} Gbit/s)\n",
               topology.racks(), file.across.alpha_us, file.across.beta_us_per_mib,
               gbit_of(file.across));
  }
  return {};
}

Status save_of_job(const InfoOptions& options) {
  ISTHMUS_ASSIGN(const std::unique_ptr<World> world, World::from_launcher());
  Communicator& group = world->communicator();
  ISTHMUS_ASSIGN(const TopologyFile file, of_job(options, group));
  Status saved = group.rank() == 0 ? save(options, file) : Status();
  // No rank leaves while another still measures.
  ISTHMUS_TRY(group.barrier());
  return saved;
}

}  // namespace

int run_info_save(const InfoOptions& options) {
  const Result<WorldOptions> launched = options_from_launcher();
  const bool job = launched.ok() && launched->size > 1;
  if (job && (options.ranks > 0 || options.nodes > 1 || options.nodes_per_rack > 0)) {
    fmt::print(stderr,
               "isthmus info: the job says how many ranks there are on which nodes: "
               "--ranks, --nodes and --nodes-per-rack cannot\n");
    return kExitUsage;
  }
  const Status saved = job ? save_of_job(options) : save(options, of_this_machine(options));
  if (!saved.ok()) {
    fmt::print(stderr, "isthmus info: {}\n", saved.error().to_string());
    return kExitFailed;
  }
  return 0;
}

}  // namespace isthmus
