#include <bit>
#include <vector>

#include "collectives/algorithms/two_level.h"

namespace isthmus {

namespace {

constexpr std::uint8_t kStaged = 1;
constexpr std::uint8_t kRead = 2;

// Nodes are numbered from the root's on.
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

using TreeShape = NodeTree (*)(std::uint32_t own, std::uint32_t count);

Result<Schedule> broadcast_by_nodes(const Request& request, std::string_view name,
                                    TreeShape shape) {
  const std::uint32_t pieces = request.tuning.pieces;
  const std::uint32_t slots = request.tuning.slots;
  Builder b = start_schedule(request, OpKind::kBroadcast, name, {false, pieces, 0}, true);
  const Nodes nodes(request);
  const std::uint32_t root_node = nodes.node_of(request.root);
  const std::uint32_t own = (nodes.own() + nodes.count() - root_node) % nodes.count();
  // The rank of each node that receives for it: the root itself, else the first.
  const auto head_local = [&](std::uint32_t index) {
    return index == 0 ? nodes.local_of(request.root) : 0;
  };
  const auto head = [&](std::uint32_t index) {
    return nodes.rank_at((index + root_node) % nodes.count(), head_local(index));
  };
  const NodeTree tree = shape(own, nodes.count());

  b.publish(kAnnounceLine, 1);
  b.await_all(kAnnounceLine, 1);
  b.gate_output();
  for (std::uint32_t piece = 0; piece < pieces; ++piece) {
    if (b.local() != head_local(own)) {
      b.await(kStaged, piece + 1, head_local(own), 1);
      b.copy(Builder::output(piece),
             Builder::of_local(b.stage(request.tuning.slot(piece)), head_local(own)), piece,
             piece + 1);
      if (piece + slots < pieces) {
        b.publish(kRead, piece + 1);
      }
      continue;
    }
    if (own != 0) {
      b.recv(head(tree.parent), Builder::output(piece), piece, piece + 1);
    }
    for (const std::uint32_t child : tree.children) {
      b.send(head(child), Builder::output(piece), piece, piece + 1);
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
  return broadcast_by_nodes(request, "two_level_chain_broadcast", chain);
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
