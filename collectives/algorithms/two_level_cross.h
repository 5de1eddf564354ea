#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "collectives/algorithms/two_level_team.h"

namespace isthmus {

// How the counterparts of several nodes combine their sums of a slice, for what goes chunk by chunk
// through lanes of its own: see Lanes. Of several racks those of a rack do so first, and some of
// them with their like in the other racks: no byte crosses between racks more often than it must.

// All with all. Level by level the first `owners` nodes of a team combine one part each of what all
// of them have sums of, and send the result back in the end; in between, the owners exchange their
// parts whole with the `last` team. All operands of a team are combined at once: one rounding a
// level.
class AtOnce {
 public:
  std::uint32_t parts() const { return parts_; }

  // The result, and what each level and the last team need.
  std::uint32_t units() const { return last_base_ + (last_.count > 1 ? last_.count : 0); }

  static constexpr std::uint32_t result() { return 0; }

  void run(Builder& b, Place operands, std::uint32_t first, std::uint32_t base) const {
    const Chunk chunk = {b, first, base};
    if (levels_.empty()) {
      b.reduce_locals(summed(chunk, 0, {0, parts_}), operands, first, first + parts_, true, false);
    }
    for (std::uint32_t owner = 0; !levels_.empty() && owner < levels_[0].owners; ++owner) {
      const Span part = {owner * levels_[0].length, levels_[0].length};
      const Place from = {operands.space, operands.local, operands.at + part.begin};
      const bool own = owner == levels_[0].team.own;
      b.reduce_locals(own ? operand(chunk, 0, owner) : sum(chunk, 0, owner), from,
                      first + part.begin, first + part.end(), true, false);
    }
    combine(chunk, 0, {0, parts_});
  }

 protected:
  struct Level {
    Team team;
    std::uint32_t owners;      // of parts: the first ones
    std::uint32_t length = 0;  // of a part, in marks
    std::uint32_t base = 0;    // of its units: the team's operands of the own part, sums of parts
  };

  // Teams of one change nothing.
  AtOnce(const Request& request, std::vector<Level> levels, Team last)
      : nodes_(request), levels_(std::move(levels)), last_(std::move(last)) {
    std::erase_if(levels_,
                  [](const Level& level) { return level.team.count == 1 && level.owners == 1; });
    for (const Level& level : levels_) {
      parts_ *= level.owners;
    }
    std::uint32_t length = parts_;
    std::uint32_t base = parts_;
    for (Level& level : levels_) {
      length /= level.owners;
      level.length = length;
      level.base = base;
      base += (level.team.count + level.owners) * length;
    }
    last_base_ = base;
  }

 private:
  // Marks of a slice.
  struct Span {
    std::uint32_t begin;
    std::uint32_t count;

    std::uint32_t end() const { return begin + count; }
  };

  // One chunk's slice, its first mark and unit.
  struct Chunk {
    Builder& b;
    std::uint32_t first;
    std::uint32_t base;
  };

  Place operand(const Chunk& chunk, std::size_t depth, std::uint32_t member) const {
    const Level& level = levels_[depth];
    return Builder::scratch(chunk.base + level.base + member * level.length);
  }

  Place sum(const Chunk& chunk, std::size_t depth, std::uint32_t owner) const {
    return operand(chunk, depth, levels_[depth].team.count + owner);
  }

  // Where the sums of a span go that the teams before `depth` have combined.
  Place summed(const Chunk& chunk, std::size_t depth, Span span) const {
    if (depth < levels_.size()) {
      return sum(chunk, depth, 0);
    }
    return last_.count > 1 ? last_operand(chunk, last_.own) : done(chunk, span);
  }

  static Place done(const Chunk& chunk, Span span) {
    return Builder::scratch(chunk.base + span.begin);
  }

  // Of one mark, to which all levels have cut the span.
  Place last_operand(const Chunk& chunk, std::uint32_t member) const {
    return Builder::scratch(chunk.base + last_base_ + member);
  }

  // The span's sums are in place.
  void combine(const Chunk& chunk, std::size_t depth, Span span) const {
    if (depth == levels_.size()) {
      exchange(chunk, span);
      return;
    }
    const Level& level = levels_[depth];
    const Team& team = level.team;
    const auto part = [&](std::uint32_t owner) {
      return Span{span.begin + owner * level.length, level.length};
    };
    const bool owns = team.own < level.owners;
    const Span own = part(owns ? team.own : 0);
    Builder& b = chunk.b;
    if (owns && depth > 0) {
      b.copy(operand(chunk, depth, team.own), sum(chunk, depth, team.own), chunk.first + own.begin,
             chunk.first + own.end());
    }
    for (std::uint32_t step = 1; step < team.count; ++step) {
      const std::uint32_t to = team.after(step);
      const std::uint32_t from = team.after(team.count - step);
      if (to < level.owners) {
        send(chunk, team, to, sum(chunk, depth, to), part(to));
      }
      if (owns) {
        recv(chunk, team, from, operand(chunk, depth, from), own);
      }
    }
    if (owns) {
      const bool finish = depth + 1 == levels_.size() && last_.count == 1;
      b.reduce_units(summed(chunk, depth + 1, own), operand(chunk, depth, 0), team.count,
                     kNoOwnOperand, chunk.first + own.begin, chunk.first + own.end(), finish);
      combine(chunk, depth + 1, own);
    }
    for (std::uint32_t step = 1; step < team.count; ++step) {
      const std::uint32_t to = team.after(step);
      const std::uint32_t from = team.after(team.count - step);
      if (owns) {
        send(chunk, team, to, done(chunk, own), own);
      }
      if (from < level.owners) {
        recv(chunk, team, from, done(chunk, part(from)), part(from));
      }
    }
  }

  void exchange(const Chunk& chunk, Span span) const {
    for (std::uint32_t step = 1; step < last_.count; ++step) {
      const std::uint32_t from = last_.after(last_.count - step);
      send(chunk, last_, last_.after(step), last_operand(chunk, last_.own), span);
      recv(chunk, last_, from, last_operand(chunk, from), span);
    }
    if (last_.count > 1) {
      chunk.b.reduce_units(done(chunk, span), last_operand(chunk, 0), last_.count, kNoOwnOperand,
                           chunk.first + span.begin, chunk.first + span.end(), true);
    }
  }

  void send(const Chunk& chunk, const Team& team, std::uint32_t member, Place src,
            Span span) const {
    chunk.b.send(nodes_.rank_at(team.node(member), chunk.b.local()), src, chunk.first + span.begin,
                 chunk.first + span.end());
  }

  void recv(const Chunk& chunk, const Team& team, std::uint32_t member, Place dst,
            Span span) const {
    chunk.b.recv(nodes_.rank_at(team.node(member), chunk.b.local()), dst, chunk.first + span.begin,
                 chunk.first + span.end());
  }

  const Nodes nodes_;
  std::vector<Level> levels_;
  const Team last_;
  std::uint32_t parts_ = 1;
  std::uint32_t last_base_ = 0;
};

// Whole slices to every other node.
struct WholeSlices : AtOnce {
  explicit WholeSlices(const Request& request)
      : AtOnce(request, {}, Team::of_all(Nodes(request))) {}
};

// A part per node, or of racks per place that each of them has; of two nodes, or racks, whole ones:
// as many bytes in one step as halves there and back in two.
struct SplitSlices : AtOnce {
  explicit SplitSlices(const Request& request) : SplitSlices(request, Nodes(request)) {}

 private:
  SplitSlices(const Request& request, const Nodes& nodes)
      : AtOnce(request, levels(nodes), splits_last(nodes) ? Team::of_own(nodes) : widest(nodes)) {}

  // All nodes, or those of this one's place in their racks; just itself where others go on for it.
  static Team widest(const Nodes& nodes) {
    if (nodes.racks() == 1) {
      return Team::of_all(nodes);
    }
    return nodes.place() < nodes.rack_nodes_min()
               ? Team::across_racks(nodes, [&](std::uint32_t) { return nodes.place(); })
               : Team::of_own(nodes);
  }

  static bool splits_last(const Nodes& nodes) {
    return (nodes.racks() > 1 ? nodes.racks() : nodes.count()) > 2;
  }

  static std::vector<Level> levels(const Nodes& nodes) {
    std::vector<Level> out;
    if (nodes.racks() > 1) {
      out.push_back({Team::of_rack(nodes), nodes.rack_nodes_min()});
    }
    if (splits_last(nodes)) {
      out.push_back({widest(nodes), nodes.racks() > 1 ? nodes.racks() : nodes.count()});
    }
    return out;
  }
};

// Two at a time, in log2(nodes) rounds: the first `halvings` of them exchange halves of what each
// still has sums of and keep one (so a slice has 2^halvings parts), the others exchange all that is
// left, one part; then the halves come back. Near nodes exchange the most: those of a rack, as far
// as every rack has them, before those of different racks. Nodes beyond a power of two give their
// slices to a neighbour first and get the result from it.
//
// Of two sums that of the lower index is the left operand: each part is combined by one tree. All
// happens in the slice's own units; every first receive has units of its own, so it can be posted
// at once. Receives of results wait until the same partner has taken what they replace, which it
// did before it sent them.
class InTurn {
 public:
  InTurn(const Request& request, std::uint32_t halvings) : nodes_(request) {
    if (nodes_.racks() == 1) {
      levels_.emplace_back(Team::of_all(nodes_), nodes_.count());
    } else {
      levels_.emplace_back(Team::of_rack(nodes_), nodes_.rack_nodes_min());
      const std::uint32_t cores = levels_[0].cores;
      const std::uint32_t core = levels_[0].core;
      levels_.emplace_back(
          Team::across_racks(
              nodes_,
              [&](std::uint32_t rack) { return lead(nodes_.nodes_of_rack(rack), cores, core); }),
          nodes_.racks());
    }
    for (Level& level : levels_) {
      level.halvings = std::min(halvings, level.rounds);
      halvings -= level.halvings;
      parts_ <<= level.halvings;
    }
  }

  std::uint32_t parts() const { return parts_; }

  // The slice, and all that arrives in addition: folded nodes' spans, halves, parts.
  std::uint32_t units() const {
    std::uint32_t held = parts_;
    std::uint32_t units = parts_;
    for (const Level& level : levels_) {
      units += (level.next() - level.lead_of(level.core) - 1) * held;
      units += held - (held >> level.halvings);
      held >>= level.halvings;
      units += (level.rounds - level.halvings) * held;
    }
    return units;
  }

  static constexpr std::uint32_t result() { return 0; }

  void run(Builder& b, Place operands, std::uint32_t first, std::uint32_t base) const {
    b.reduce_locals(Builder::scratch(base), operands, first, first + parts_, true, false);
    Chunk chunk = {b, first, base, base + parts_};
    combine(&chunk, 0, {0, parts_});
  }

 private:
  // Parts of a slice.
  struct Span {
    std::uint32_t begin;
    std::uint32_t count;
  };

  // One chunk's slice, its first mark and unit, and the next unit for what arrives.
  struct Chunk {
    Builder& b;
    std::uint32_t first;
    std::uint32_t base;
    std::uint32_t free;
  };

  // Of `count` members in `cores` runs, as even as can be, the one that begins a run.
  static std::uint32_t lead(std::uint32_t count, std::uint32_t cores, std::uint32_t core) {
    return core * (count / cores) + std::min(core, count % cores);
  }

  // The members of a team in a power of two of runs. The first of each takes part in the rounds,
  // the others fold into it.
  struct Level {
    // As many runs as a team of `least` has.
    Level(Team members, std::uint32_t least)
        : team(std::move(members)),
          rounds(static_cast<std::uint32_t>(std::bit_width(least)) - 1),
          cores(1U << rounds),
          core((team.own + 1) * cores / team.count) {
      core = std::min(core, cores - 1);
      while (lead_of(core) > team.own) {
        --core;
      }
    }

    std::uint32_t lead_of(std::uint32_t run) const { return lead(team.count, cores, run); }

    std::uint32_t next() const { return lead_of(core + 1); }

    Team team;
    std::uint32_t rounds;
    std::uint32_t cores;
    std::uint32_t core;  // this node's run
    std::uint32_t halvings = 0;
  };

  void combine(Chunk* chunk, std::size_t depth, const Span all) const {
    const Level& level = levels_[depth];
    const std::uint32_t leader = level.lead_of(level.core);
    if (level.team.own != leader) {
      send(*chunk, level.team.node(leader), all);
      recv(*chunk, level.team.node(leader), all);
      return;
    }
    for (std::uint32_t member = leader + 1; member < level.next(); ++member) {
      take(chunk, level.team.node(member), all, false);
    }
    const auto partner = [&](std::uint32_t round) {
      return level.team.node(level.lead_of(level.core ^ (1U << round)));
    };
    Span held = all;
    for (std::uint32_t round = 0; round < level.rounds; ++round) {
      const bool halves = round < level.halvings;
      const Span kept = halves ? half(held, (level.core >> round) & 1U) : held;
      send(*chunk, partner(round), halves ? half(held, ~(level.core >> round) & 1U) : held);
      take(chunk, partner(round), kept, depth + 1 == levels_.size() && round + 1 == level.rounds);
      held = kept;
    }
    if (depth + 1 < levels_.size()) {
      combine(chunk, depth + 1, held);
    }
    for (std::uint32_t round = level.halvings; round-- > 0;) {
      const Span missing = {held.begin ^ held.count, held.count};
      send(*chunk, partner(round), held);
      recv(*chunk, partner(round), missing);
      held = {std::min(held.begin, missing.begin), 2 * held.count};
    }
    for (std::uint32_t member = leader + 1; member < level.next(); ++member) {
      send(*chunk, level.team.node(member), all);
    }
  }

  static Span half(Span held, std::uint32_t which) {
    return {held.begin + which * (held.count / 2), held.count / 2};
  }

  std::uint32_t peer(const Chunk& chunk, std::uint32_t node) const {
    return nodes_.rank_at(node, chunk.b.local());
  }

  void send(const Chunk& chunk, std::uint32_t node, Span span) const {
    const std::uint32_t begin = chunk.first + span.begin;
    chunk.b.send(peer(chunk, node), Builder::scratch(chunk.base + span.begin), begin,
                 begin + span.count);
  }

  void recv(const Chunk& chunk, std::uint32_t node, Span span) const {
    const std::uint32_t begin = chunk.first + span.begin;
    chunk.b.recv(peer(chunk, node), Builder::scratch(chunk.base + span.begin), begin,
                 begin + span.count);
  }

  // Receives another node's sums of a span into free units, and adds them to this one's.
  void take(Chunk* chunk, std::uint32_t node, Span span, bool finish) const {
    const Place theirs = Builder::scratch(chunk->free);
    const std::uint32_t begin = chunk->first + span.begin;
    chunk->free += span.count;
    chunk->b.recv(peer(*chunk, node), theirs, begin, begin + span.count);
    chunk->b.reduce(Builder::scratch(chunk->base + span.begin), theirs, begin, begin + span.count,
                    finish, node < nodes_.own());
  }

  const Nodes nodes_;
  std::vector<Level> levels_;
  std::uint32_t parts_ = 1;
};

struct HalvedSlices : InTurn {
  explicit HalvedSlices(const Request& request) : InTurn(request, request.tuning.halvings) {}
};

}  // namespace isthmus
