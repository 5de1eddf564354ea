#pragma once

#include <bitset>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "transport/rendezvous.h"
#include "transport/shm/node_identity.h"
#include "transport/shm/shm_node.h"

namespace isthmus {

// Most processors that a rank's mask may name.
inline constexpr std::size_t kProcessorsMax = 4096;

// What a rank tells all others at the start.
struct RankCard {
  int rank = -1;
  std::string version;            // of isthmus: must be equal
  std::uint64_t config_hash = 0;  // of the variables that change schedules: must be equal
  NodeIdentity node;
  std::string rack;  // ISTHMUS_RACK_ID: equal on all ranks of a node
  ShmNode::LocalPeer shared_memory;
  std::vector<std::byte> tcp;
  std::bitset<kProcessorsMax> processors;  // it may run on

  std::string to_json() const;
  static Result<RankCard> from_json(std::string_view text);
};

// What every rank knows after the exchange.
struct AddressBook {
  std::vector<RankCard> cards;  // by rank
  std::string tuning;           // rank 0's tuning table: all choose by the same; empty for none
};

// The one exchange of a world: every rank sets its card, rank 0 sets the table of all cards, or the
// reason why there is none, which every rank then returns. Two store operations a rank, O(ranks) on
// rank 0. Afterwards the store is not needed. `tuning` is rank 0's, ignored on the others.
Result<AddressBook> exchange_cards(const RankCard& mine, const std::string& tuning, int ranks,
                                   Rendezvous& store, const std::string& prefix, Deadline deadline);

// In place of exchange_cards(), by a rank that cannot take part: every rank returns its reason at
// once. Best effort: where the store fails the others time out.
void report_failure(const Error& error, int rank, Rendezvous& store, const std::string& prefix);

}  // namespace isthmus
