#include <bit>
#include <vector>

#include "collectives/algorithms/two_level.h"

namespace isthmus {

namespace {

constexpr std::uint8_t kStaged = 1;
constexpr std::uint8_t kRead = 2;

// Nodes are numbered from the root's on, rack by rack.
struct NodeTree {
  std::uint32_t parent = 0;
  std::vector<std::uint32_t> children;
};

NodeTree binomial(std::uint32_t own, std::uint32_t count) {
  const std::uint32_t top = own == 0 ? std::bit_ceil(count) : own & (~own + 1);
  NodeTree tree = {own - top, {}};
  for (std::uint32_t bit = top / 2; bit > 0; bit /= 2) {
    if (own + bit < count) {
      tree.children.push_back(own + bit);
    }
  }
  return tree;
}

NodeTree chain(std::uint32_t own, std::uint32_t count) {
  NodeTree tree = {own - 1, {}};
  if (own + 1 < count) {
    tree.children.push_back(own + 1);
  }
  return tree;
}

NodeTree star(std::uint32_t own, std::uint32_t count) {
  NodeTree tree;
  for (std::uint32_t node = 1; own == 0 && node < count; ++node) {
    tree.children.push_back(node);
  }
  return tree;
}

using TreeShape = NodeTree (*)(std::uint32_t own, std::uint32_t count);

// Nodes numbered from the root's on, first those of its rack, and the rank of each that stands for
// it: the root itself, else the first. Racks are numbered from the root's on, too.
class Heads {
 public:
  explicit Heads(const Request& request)
      : nodes_(request),
        root_(request.root),
        root_node_(nodes_.node_of(request.root)),
        root_rack_(nodes_.rack_of(root_node_)) {}

  std::uint32_t own() const { return index_of(nodes_.own()); }

  std::uint32_t count() const { return nodes_.count(); }

  std::uint32_t racks() const { return nodes_.racks(); }

  std::uint32_t own_rack() const { return (nodes_.own_rack() + racks() - root_rack_) % racks(); }

  // The first node of a rack.
  std::uint32_t first(std::uint32_t rack) const {
    return rack == 0 ? 0 : index_of(nodes_.rack_begin((rack + root_rack_) % racks()));
  }

  std::uint32_t nodes_of_own_rack() const { return nodes_.nodes_of_rack(nodes_.own_rack()); }

  std::uint32_t local(std::uint32_t index) const { return index == 0 ? nodes_.local_of(root_) : 0; }

  std::uint32_t rank(std::uint32_t index) const {
    const std::uint32_t near = nodes_.nodes_of_rack(root_rack_);
    const std::uint32_t begin = nodes_.rack_begin(root_rack_);
    const std::uint32_t node = index < near ? begin + (nodes_.place_of(root_node_) + index) % near
                                            : (begin + index) % count();
    return nodes_.rank_at(node, local(index));
  }

 private:
  std::uint32_t index_of(std::uint32_t node) const {
    const std::uint32_t near = nodes_.nodes_of_rack(root_rack_);
    return nodes_.rack_of(node) == root_rack_
               ? (node + near - root_node_) % near
               : (node + count() - nodes_.rack_begin(root_rack_)) % count();
  }

  const Nodes nodes_;
  const std::uint32_t root_;
  const std::uint32_t root_node_;
  const std::uint32_t root_rack_;
};

// One tree of the shape for the first nodes of the racks, and one for each rack.
NodeTree by_racks(const Heads& heads, TreeShape shape) {
  const std::uint32_t own = heads.own();
  const std::uint32_t rack = heads.own_rack();
  const std::uint32_t first = heads.first(rack);
  NodeTree tree;
  if (own == first) {
    const NodeTree across = shape(rack, heads.racks());
    tree.parent = rack == 0 ? 0 : heads.first(across.parent);
    for (const std::uint32_t child : across.children) {
      tree.children.push_back(heads.first(child));
    }
  }
  const NodeTree near = shape(own - first, heads.nodes_of_own_rack());
  tree.parent = own == first ? tree.parent : first + near.parent;
  for (const std::uint32_t child : near.children) {
    tree.children.push_back(first + child);
  }
  return tree;
}

// Neighbours in a chain of all nodes are of one rack but for one at its end.
NodeTree in_a_row(const Heads& heads, TreeShape shape) {
  return shape(heads.own(), heads.count());
}

using TreeOf = NodeTree (*)(const Heads& heads, TreeShape shape);

Result<Schedule> broadcast_by_nodes(const Request& request, std::string_view name, TreeShape shape,
                                    TreeOf tree_of = by_racks) {
  const std::uint32_t pieces = request.tuning.pieces;
  const std::uint32_t slots = request.tuning.slots;
  Builder b = start_schedule(request, OpKind::kBroadcast, name, whole_partition(request), true);
  const Heads heads(request);
  const std::uint32_t own = heads.own();
  const std::uint32_t head = heads.local(own);
  const NodeTree tree = tree_of(heads, shape);

  b.publish(kAnnounceLine, 1);
  b.await_all(kAnnounceLine, 1);
  b.gate_output();
  for (std::uint32_t piece = 0; piece < pieces; ++piece) {
    if (b.local() != head) {
      b.await(kStaged, piece + 1, head, 1);
      b.copy(Builder::output(piece), Builder::of_local(b.stage(request.tuning.slot(piece)), head),
             piece, piece + 1);
      if (piece + slots < pieces) {
        b.publish(kRead, piece + 1);
      }
      continue;
    }
    if (own != 0) {
      b.recv(heads.rank(tree.parent), Builder::output(piece), piece, piece + 1);
    }
    for (const std::uint32_t child : tree.children) {
      b.send(heads.rank(child), Builder::output(piece), piece, piece + 1);
    }
    if (b.locals() > 1) {
      if (piece >= slots) {
        b.await_all(kRead, piece - slots + 1);
      }
      b.copy(b.stage(request.tuning.slot(piece)), Builder::output(piece), piece, piece + 1);
      b.publish(kStaged, piece + 1);
    }
  }
  return b.build();
}

// The head of each node reduces what its node staged, adds the sums of its children's nodes, all in
// one Reduce, and sends the sum on. A scratch slot holds its node's sum, then the children's.
Result<Schedule> reduce_by_nodes(const Request& request, std::string_view name, TreeShape shape) {
  const Tuning& tuning = request.tuning;
  Builder b = start_schedule(request, OpKind::kReduce, name, whole_partition(request), true);
  const Heads heads(request);
  const std::uint32_t own = heads.own();
  const std::uint32_t head = heads.local(own);
  const NodeTree tree = by_racks(heads, shape);
  const auto count = static_cast<std::uint32_t>(tree.children.size());

  b.publish(kAnnounceLine, 1);
  b.await_all(kAnnounceLine, 1);
  for (std::uint32_t piece = 0; piece < tuning.pieces; ++piece) {
    if (b.local() != head) {
      if (piece >= tuning.slots) {
        b.await(kRead, piece - tuning.slots + 1, head, 1);
      }
      b.copy(b.stage(tuning.slot(piece)), Builder::input(piece), piece, piece + 1);
      b.publish(kStaged, piece + 1);
      continue;
    }
    const Place sum = Builder::scratch(tuning.slot(piece) * (count + 1));
    for (std::uint32_t child = 0; child < count; ++child) {
      b.recv(heads.rank(tree.children[child]), Builder::scratch(sum.at + 1 + child), piece,
             piece + 1);
    }
    b.await_all(kStaged, piece + 1);
    b.reduce_locals(sum, b.stage(tuning.slot(piece)), piece, piece + 1, true, false);
    if (piece + tuning.slots < tuning.pieces) {
      b.publish(kRead, piece + 1);
    }
    const bool root = own == 0;
    if (count > 0) {
      b.reduce_units(root ? Builder::output(piece) : sum, sum, count + 1, count + 1, piece,
                     piece + 1, root);
    }
    if (!root) {
      b.send(heads.rank(tree.parent), sum, piece, piece + 1);
    }
  }
  return b.build();
}

}  // namespace

void Nodes::disseminate(Builder& b) const {
  for (std::uint32_t distance = 1; distance < count(); distance *= 2) {
    b.signal(rank_at(after(distance), 0));
    b.wait_signal(rank_at(after(count() - distance), 0));
  }
}

Result<Schedule> two_level_tree_broadcast(const Request& request) {
  return broadcast_by_nodes(request, "two_level_tree_broadcast", binomial);
}

Result<Schedule> two_level_chain_broadcast(const Request& request) {
  return broadcast_by_nodes(request, "two_level_chain_broadcast", chain, in_a_row);
}

Result<Schedule> two_level_tree_reduce(const Request& request) {
  return reduce_by_nodes(request, "two_level_tree_reduce", binomial);
}

Result<Schedule> two_level_direct_reduce(const Request& request) {
  return reduce_by_nodes(request, "two_level_direct_reduce", star);
}

Result<Schedule> two_level_barrier(const Request& request) {
  Builder b = start_schedule(request, OpKind::kBarrier, "two_level_barrier", {}, true);
  const Nodes nodes(request);
  b.publish(kAnnounceLine, 1);
  b.await_all(kAnnounceLine, 1);
  if (b.local() == 0) {
    nodes.disseminate(b);
    b.publish(kStaged, 1);
  } else {
    b.await(kStaged, 1, 0, 1);
  }
  return b.build();
}

}  // namespace isthmus
