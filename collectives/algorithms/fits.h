#pragma once

#include "collectives/algorithms/algorithm.h"

namespace isthmus {

// Where an algorithm fits, and how it cuts the data there: the columns `applicable` and `tune` of
// the table of algorithms.

double mib(const Payload& payload);

// One Reduce takes all operands of a node.
bool one_node(const Topology& topology, const Payload& payload);

// Of the class, so that all its sizes get one answer.
bool fits_line(const Topology& topology, const Payload& payload);
// Two ranks: each shows the one block that is not its own.
bool other_block_fits_line(const Topology& topology, const Payload& payload);
bool exchange_fits_line(const Topology& topology, const Payload& payload);

bool fits_slot(const Topology& topology, const Payload& payload);
bool blocks_fit_slot(const Topology& topology, const Payload& payload);

bool one_rank(const Topology& topology, const Payload& payload);

// Blocks from every rank to every rank, of lengths that all ranks know.
bool exchange_fits_slot(const Topology& topology, const Payload& payload);
bool stages_exchange(const Topology& topology, const Payload& payload);
bool exchanges_messages(const Topology& topology, const Payload& payload);

// Messages for any placement of ranks.
bool messages(const Topology& topology, const Payload& payload);

// All operands in one Reduce.
bool messages_at_once(const Topology& topology, const Payload& payload);

// Two operands at a time: a 16-bit sum of more than two ranks rounds more than once, so those come
// here only where nothing else can.
bool all_reduces_in_turn(const Topology& topology, const Payload& payload);
bool scatters_in_turn(const Topology& topology, const Payload& payload);
bool reduces_in_turn(const Topology& topology, const Payload& payload);

// Several nodes whose ranks share memory.
bool several_nodes(const Topology& topology, const Payload& payload);
bool leaders_fit_slot(const Topology& topology, const Payload& payload);

// One piece.
Tuning at_once(const Topology& topology, const Payload& payload);

// Pieces of the whole data, or of slices of it, staged inside a node.
Tuning staged_whole(const Topology& topology, const Payload& payload);

// The same where the root alone reduces: it waits for the first piece, so pieces start smaller.
Tuning staged_to_reduce(const Topology& topology, const Payload& payload);
bool stages_whole(const Topology& topology, const Payload& payload);

// The same for blocks: a piece of all blocks is handled at once.
Tuning staged_blocks(const Topology& topology, const Payload& payload);
bool stages_blocks(const Topology& topology, const Payload& payload);
Tuning slices(const Topology& topology, const Payload& payload);
bool stages_slices(const Topology& topology, const Payload& payload);

// Buffers that peers read where they lie, of blocks of one length.
bool loads(const Topology& topology, const Payload& payload);
bool pulls(const Topology& topology, const Payload& payload);
Tuning exposed_slices(const Topology& topology, const Payload& payload);
Tuning exposed_blocks(const Topology& topology, const Payload& payload);

// Segments of a rank's share of the data, or of its block: one is reduced while the next is on the
// wire.
Tuning ring_whole(const Topology& topology, const Payload& payload);
Tuning ring_blocks(const Topology& topology, const Payload& payload);

// The root's data in pieces that keep a chain of nodes busy.
Tuning tree_pieces(const Topology& topology, const Payload& payload);

// Chunks of 128 to 512 KiB: large enough for the wire, several in flight.
Tuning lanes(const Topology& topology, const Payload& payload);
bool stages_lanes(const Topology& topology, const Payload& payload);

// The same for sums two at a time, of any number of nodes, with as many halvings as leave parts of
// some KiB.
// Every node has all shards, one a local rank and in this order: lanes of shards.
bool exchanges_shards(const Topology& topology, const Payload& payload);
bool halves_shards(const Topology& topology, const Payload& payload);
Tuning node_shards(const Topology& topology, const Payload& payload);
Tuning halving_shards(const Topology& topology, const Payload& payload);

Tuning halving_lanes(const Topology& topology, const Payload& payload);
bool stages_halving_lanes(const Topology& topology, const Payload& payload);
bool leaders_double(const Topology& topology, const Payload& payload);

// Blocks by way of their nodes.
Tuning node_blocks(const Topology& topology, const Payload& payload);
bool stages_node_blocks(const Topology& topology, const Payload& payload);

bool stages_tree(const Topology& topology, const Payload& payload);

// Pieces that the root takes from everyone: from nodes, by messages, or staged.
Tuning star_pieces(const Topology& topology, const Payload& payload);
bool stages_star(const Topology& topology, const Payload& payload);
Tuning root_pieces(const Topology& topology, const Payload& payload);
Tuning staged_to_root(const Topology& topology, const Payload& payload);
bool stages_to_root(const Topology& topology, const Payload& payload);

bool stages_reduce_tree(const Topology& topology, const Payload& payload);

}  // namespace isthmus
