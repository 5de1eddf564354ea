#pragma once

#include <cstdint>
#include <string_view>

#include "collectives/algorithms/algorithm.h"

namespace isthmus {

// How algorithms with staging go through their data piece by piece: `slots` pieces of a rank's
// staging are in use at once, and one is written again when those who read it have said so. For
// mapped_*.cc, and for two_level_*.cc, which do the same inside their nodes.

// Progress lines. The announcement doubles as "piece 0 is staged": one cache line less to wait for.
inline constexpr std::uint8_t kStaged = 1;
inline constexpr std::uint8_t kRead = 2;
inline constexpr std::uint8_t kReduced = 2;  // slices: in place of kRead
inline constexpr std::uint8_t kResultsRead = 3;

inline Builder start_mapped(const Request& request, OpKind op, std::string_view name,
                            const Partition& partition) {
  Builder b = start_schedule(request, op, name, partition, true);
  b.in_order();
  return b;
}

inline void announce(Builder& b) {
  b.publish(kAnnounceLine, 1);
  b.await_all(kAnnounceLine, 1);
}

inline void publish_staged(Builder& b, std::uint32_t piece) {
  b.publish(piece == 0 ? kAnnounceLine : kStaged, piece + 1);
}

inline void await_staged(Builder& b, std::uint32_t piece) {
  b.await_all(piece == 0 ? kAnnounceLine : kStaged, piece + 1);
}

// The writers need it only for a piece that uses the slot again.
inline void publish_read(Builder& b, const Tuning& tuning, std::uint32_t piece) {
  if (piece + tuning.slots < tuning.pieces) {
    b.publish(kRead, piece + 1);
  }
}

// Until everyone has read what lies in the piece's slot.
inline void await_slot(Builder& b, const Tuning& tuning, std::uint32_t piece) {
  if (piece >= tuning.slots) {
    b.await_all(kRead, piece - tuning.slots + 1);
  }
}

// `stage(piece)` goes `lead` pieces ahead of `take(piece)`.
template <typename Stage, typename Take>
void stage_ahead(const Tuning& tuning, const Stage& stage, const Take& take) {
  std::uint32_t staged = 0;
  for (std::uint32_t piece = 0; piece < tuning.pieces; ++piece) {
    for (; staged < tuning.pieces && staged <= piece + tuning.lead; ++staged) {
      stage(staged);
    }
    take(piece);
  }
}

// Every rank shows and reads: `show(piece)` fills the piece's slot, `lead` pieces ahead of the one
// that everyone has shown and that `take(piece)` reads.
//
// With 2 lead + 2 slots nobody need say what it has read: a rank that shows piece p has read all up
// to p - lead - 1, and a slot is filled for piece p + lead + 1 once everyone has shown piece p.
template <typename Show, typename Take>
Result<Schedule> exchange_pieces(Builder& b, const Tuning& tuning, const Show& show,
                                 const Take& take) {
  const bool implied = tuning.slots >= 2 * tuning.lead + 2;
  const auto fill = [&](std::uint32_t piece) {
    if (!implied) {
      await_slot(b, tuning, piece);
    }
    show(piece);
    publish_staged(b, piece);
  };
  const auto read = [&](std::uint32_t piece) {
    await_staged(b, piece);
    take(piece);
    if (!implied) {
      publish_read(b, tuning, piece);
    }
  };
  stage_ahead(tuning, fill, read);
  return b.build();
}

// This rank shows only, to local ranks [first, first + readers); `then(piece)` runs when the piece
// can be read. Everyone's announcement is looked at before the first wait for what only a root, or
// only the others, would do: each rank may take itself for the root, and none of them be it.
template <typename Show, typename Then>
Result<Schedule> show_pieces(Builder& b, const Tuning& tuning, std::uint32_t first,
                             std::uint32_t readers, const Show& show, const Then& then) {
  for (std::uint32_t piece = 0; piece < tuning.pieces; ++piece) {
    if (piece == tuning.slots) {
      b.await_all(kAnnounceLine, 1);
    }
    if (piece >= tuning.slots) {
      b.await(kRead, piece - tuning.slots + 1, first, readers);
    }
    show(piece);
    publish_staged(b, piece);
    then(piece);
  }
  if (tuning.pieces <= tuning.slots) {
    b.await_all(kAnnounceLine, 1);
  }
  return b.build();
}

// This rank reads only: what everyone shows, or what the root does.
template <typename Take>
Result<Schedule> take_from_all(Builder& b, const Tuning& tuning, const Take& take) {
  b.publish(kAnnounceLine, 1);
  for (std::uint32_t piece = 0; piece < tuning.pieces; ++piece) {
    await_staged(b, piece);
    take(piece);
    publish_read(b, tuning, piece);
  }
  return b.build();
}

template <typename Take>
Result<Schedule> take_from_root(Builder& b, const Tuning& tuning, std::uint32_t root,
                                const Take& take) {
  announce(b);
  for (std::uint32_t piece = 0; piece < tuning.pieces; ++piece) {
    if (piece > 0) {
      b.await(kStaged, piece + 1, root, 1);
    }
    take(piece);
    publish_read(b, tuning, piece);
  }
  return b.build();
}

// Piece `piece` of the input's block for every other rank, into a unit per rank from `first` on.
void show_blocks(Builder& b, Place first, std::uint32_t piece, std::uint32_t pieces);

// Piece `piece` of every rank's block from `place` (whose owner is ignored) of its owner, the
// nearest owner first; this rank's own from mark `own` of its input.
void gather_blocks(Builder& b, Place place, std::uint32_t own, std::uint32_t piece,
                   std::uint32_t pieces);

}  // namespace isthmus
