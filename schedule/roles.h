#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "base/result.h"
#include "schedule/schedule.h"
#include "topology/topology.h"

namespace isthmus {

// Makes the schedule of a rank whenever it is asked for, always the same.
using ScheduleSource = std::function<Result<Schedule>(std::uint32_t rank)>;

// One end of a message: a step of a role.
struct MessageEnd {
  static constexpr std::uint32_t kNone = 0xffffffffU;

  std::uint32_t role = kNone;
  std::uint32_t step = 0;

  bool operator==(const MessageEnd&) const = default;
};

// What there is to simulate: the ranks, or one rank for all those that do the same things at the
// same times in different places. A role is what such ranks do; so are the nodes that have the same
// roles in the same order one node role, and racks of the same node roles one rack role.
// docs/simulation.md says when that is exact. Plain data; `schedules` may point into what the
// caller keeps.
struct Roles {
  std::vector<const Schedule*> schedules;          // of each role
  std::vector<std::uint32_t> node;                 // of each role: its node role
  std::vector<std::vector<std::uint32_t>> locals;  // of each node role: its roles, by local rank
  std::vector<std::vector<MessageEnd>> ends;       // of each role and step: a message's other end

  std::vector<std::uint32_t> of_rank;  // the role of each rank
  std::vector<std::uint32_t> of_node;  // the node role of each node
  std::vector<std::uint32_t> of_rack;  // the rack role of each rack

  // Of each node role: its rack role, and which of several racks' nodes it is there.
  std::vector<std::uint32_t> rack;
  std::vector<std::uint32_t> node_in_rack;

  std::vector<Schedule> owned;

  Roles() = default;
  ~Roles() = default;
  Roles(const Roles&) = delete;
  Roles& operator=(const Roles&) = delete;
  Roles(Roles&&) = default;
  Roles& operator=(Roles&&) = default;

  std::size_t count() const { return schedules.size(); }

  // Every rank is a role of its own. Fails with kInternal on a message without another end.
  static Result<Roles> apart(std::span<const Schedule> schedules, const Topology& topology);

  // As few as there are for `bytes`: ranks whose steps differ in nothing but whom they talk to and
  // which marks they cover are one role, as long as each message of a role goes to one step of one
  // role. Asks `source` for every rank, twice or more often where ranks differ in their peers only;
  // keeps one schedule a role. Time is linear in all steps. Fails with what `source` fails with,
  // kInternal on a message without another end, kResource when the roles have more than
  // kRoleStepsMax steps together.
  static Result<Roles> fold(const ScheduleSource& source, const Topology& topology,
                            std::size_t bytes);

  // About 100 bytes each while they are simulated.
  static constexpr std::size_t kRoleStepsMax = std::size_t{24} << 20;
};

}  // namespace isthmus
