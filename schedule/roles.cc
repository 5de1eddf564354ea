#include "schedule/roles.h"

#include <bit>
#include <unordered_map>
#include <utility>

#include <fmt/format.h>

#include "base/hash.h"
#include "schedule/cost.h"

namespace isthmus {

namespace {

// Passes over all ranks that tell roles apart by their peers' roles, before every rank is taken for
// a role of its own: each pass looks one message further.
constexpr int kPassesMax = 8;

bool is_message(const Step& step) {
  return step.kind == StepKind::kSend || step.kind == StepKind::kRecv;
}

// A message, by its sender, receiver and number: equal for its two ends.
std::uint64_t message_key(std::uint32_t from, std::uint32_t to, std::uint32_t number) {
  const std::uint64_t lane = (static_cast<std::uint64_t>(from) << 32) | to;
  return mix64(mix64(lane + 1) + number);
}

std::uint64_t message_key(std::uint32_t rank, const Step& step) {
  return step.kind == StepKind::kSend ? message_key(rank, step.peer, step.value)
                                      : message_key(step.peer, rank, step.value);
}

Error unpaired(const Schedule& schedule, const Step& step) {
  return {Code::kInternal, 0, -1,
          fmt::format("The simulation of {} cannot begin: rank {}'s {} has no other end.",
                      schedule.algorithm, schedule.rank, describe(step))};
}

// Which node of its rack it is; of one rack all do, so 0 for all.
std::uint32_t place_in_rack(const Topology& topology, int node) {
  return topology.racks() > 1
             ? static_cast<std::uint32_t>(node - topology.rack_begin(topology.rack_of_node(node)))
             : 0;
}

// Numbers in the order in which they are first asked for.
class Numbering {
 public:
  std::uint32_t operator()(std::uint64_t key) {
    return of_key_.try_emplace(key, static_cast<std::uint32_t>(of_key_.size())).first->second;
  }

  std::size_t count() const { return of_key_.size(); }

 private:
  std::unordered_map<std::uint64_t, std::uint32_t> of_key_;
};

class Folder {
 public:
  Folder(const ScheduleSource& source, const Topology& topology, std::size_t bytes)
      : source_(source), topology_(topology), bytes_(bytes) {}

  Result<Roles> run() {
    const auto ranks = static_cast<std::uint32_t>(topology_.ranks());
    for (int pass = 0; pass < kPassesMax; ++pass) {
      ISTHMUS_TRY(look_at_all());
      const std::size_t with_nodes = tell_nodes_apart();
      if (with_nodes == kept_.size() && pair_ends()) {
        return result();
      }
      if (with_nodes == before_ || with_nodes == ranks) {
        break;  // nothing more tells them apart
      }
      before_ = with_nodes;
      known_ = std::move(refined_);
    }
    return every_rank();
  }

 private:
  // What a rank does, without whom with and where, but for what earlier passes found out of that.
  std::uint64_t signature(const Schedule& schedule) const {
    const Geometry geometry(schedule.partition, bytes_);
    const RankWork work(schedule, geometry, topology_);
    const int node = topology_.node_of(static_cast<int>(schedule.rank));
    std::uint64_t hash = hash_combine(schedule.local, schedule.in_order ? 1 : 0);
    hash = hash_combine(
        hash, static_cast<std::uint64_t>(topology_.local_of(static_cast<int>(schedule.rank))));
    hash = hash_combine(hash, place_in_rack(topology_, node));
    hash = hash_combine(hash, known_.empty() ? 0 : known_[schedule.rank]);
    for (std::size_t index = 0; index < schedule.steps.size(); ++index) {
      const Step& step = schedule.steps[index];
      const std::size_t length = geometry.length(step.begin, step.end);
      std::uint64_t one = (static_cast<std::uint64_t>(length) << 8) |
                          (static_cast<std::uint64_t>(step.kind) << 4) | step.line;
      if (is_message(step)) {
        one = hash_combine(one, way_to(node, static_cast<int>(step.peer)));
        one = known_.empty() ? one : hash_combine(one, known_[step.peer]);
      } else if (step.kind == StepKind::kPublish || step.kind == StepKind::kAwait) {
        one = hash_combine(one, (static_cast<std::uint64_t>(step.peer) << 32) | step.count);
        one = hash_combine(one, step.value);
      } else {
        one = hash_combine(
            one, std::bit_cast<std::uint64_t>(work.us(step, static_cast<double>(length))));
      }
      hash = hash_combine(hash, schedule.in_order ? one : one + released(schedule, index));
    }
    return hash;
  }

  // Where a message goes from a node, or comes from: into another rack, to a node of this one, or
  // to a local rank.
  std::uint64_t way_to(int node, int peer) const {
    const int other = topology_.node_of(peer);
    if (other == node) {
      return 1 + static_cast<std::uint64_t>(topology_.local_of(peer));
    }
    const bool near =
        topology_.racks() > 1 && topology_.rack_of_node(other) == topology_.rack_of_node(node);
    return near ? hash_combine(1, place_in_rack(topology_, other)) : 0;
  }

  // In whatever order: they are released together.
  static std::uint64_t released(const Schedule& schedule, std::size_t index) {
    std::uint64_t sum = schedule.wait_count[index];
    for (std::uint32_t at = schedule.release_begin[index]; at < schedule.release_begin[index + 1];
         ++at) {
      sum += mix64(schedule.releases[at] + 1);
    }
    return sum;
  }

  Status look_at_all() {
    const auto ranks = static_cast<std::uint32_t>(topology_.ranks());
    Numbering numbering;
    kept_.clear();
    sums_.clear();
    members_.clear();
    role_.resize(ranks);
    std::size_t steps = 0;
    for (std::uint32_t rank = 0; rank < ranks; ++rank) {
      ISTHMUS_ASSIGN(Schedule schedule, source_(rank));
      const std::uint32_t role = numbering(signature(schedule));
      role_[rank] = role;
      if (role == sums_.size()) {
        steps += schedule.steps.size();
        if (steps > Roles::kRoleStepsMax) {
          return Error{Code::kResource, 0, -1,
                       fmt::format("The ranks of {} do too different things to be simulated "
                                   "together: more than {} steps.",
                                   schedule.algorithm, Roles::kRoleStepsMax)};
        }
        sums_.emplace_back(schedule.steps.size(), 0);
        members_.push_back(0);
        kept_.push_back(schedule);
      }
      ++members_[role];
      std::vector<std::uint64_t>& sums = sums_[role];
      for (std::size_t index = 0; index < schedule.steps.size(); ++index) {
        if (is_message(schedule.steps[index])) {
          sums[index] += message_key(rank, schedule.steps[index]);
        }
      }
    }
    return {};
  }

  // Ranks of one role on nodes whose other ranks differ are two; so are those in racks whose other
  // nodes differ. Returns how many there are then.
  std::size_t tell_nodes_apart() {
    Numbering nodes;
    node_role_.clear();
    for (int node = 0; node < topology_.nodes(); ++node) {
      std::uint64_t hash = 0;
      for (const int rank : topology_.members(node)) {
        hash = hash_combine(hash, role_[static_cast<std::size_t>(rank)]);
      }
      node_role_.push_back(nodes(hash));
    }
    node_roles_ = nodes.count();
    Numbering racks;
    rack_role_.clear();
    for (int rack = 0; rack < topology_.racks(); ++rack) {
      std::uint64_t hash = 0;
      // One rack has nothing that its nodes compete for.
      for (int node = topology_.rack_begin(rack);
           topology_.racks() > 1 && node < topology_.rack_begin(rack + 1); ++node) {
        hash = hash_combine(hash, node_role_[static_cast<std::size_t>(node)]);
      }
      rack_role_.push_back(racks(hash));
    }
    Numbering refined;
    refined_.resize(role_.size());
    for (std::size_t rank = 0; rank < role_.size(); ++rank) {
      const int node = topology_.node_of(static_cast<int>(rank));
      const auto rack = static_cast<std::size_t>(topology_.rack_of_node(node));
      refined_[rank] = refined(hash_combine(
          hash_combine(role_[rank], node_role_[static_cast<std::size_t>(node)]), rack_role_[rack]));
    }
    return refined.count();
  }

  // Which step's messages are received by which: the sums over all messages of a step are equal
  // exactly where the two are the ends of the same messages. False where some are not.
  bool pair_ends() {
    std::unordered_map<std::uint64_t, MessageEnd> received;
    for (std::uint32_t role = 0; role < kept_.size(); ++role) {
      for (std::uint32_t step = 0; step < kept_[role].steps.size(); ++step) {
        if (kept_[role].steps[step].kind == StepKind::kRecv &&
            !received.try_emplace(sums_[role][step], MessageEnd{role, step}).second) {
          return false;
        }
      }
    }
    ends_.clear();
    for (const Schedule& schedule : kept_) {
      ends_.emplace_back(schedule.steps.size());
    }
    std::size_t paired = 0;
    for (std::uint32_t role = 0; role < kept_.size(); ++role) {
      for (std::uint32_t step = 0; step < kept_[role].steps.size(); ++step) {
        if (kept_[role].steps[step].kind == StepKind::kSend) {
          const auto found = received.find(sums_[role][step]);
          if (found == received.end() || members_[found->second.role] != members_[role]) {
            return false;
          }
          ends_[role][step] = found->second;
          ends_[found->second.role][found->second.step] = {role, step};
          ++paired;
        }
      }
    }
    return paired == received.size();
  }

  Result<Roles> result() {
    Roles out;
    out.of_rank = role_;
    out.of_node = node_role_;
    out.of_rack = rack_role_;
    out.ends = std::move(ends_);
    out.owned = std::move(kept_);
    out.locals.resize(node_roles_);
    out.rack.resize(node_roles_);
    out.node_in_rack.resize(node_roles_);
    out.node.resize(out.owned.size());
    for (const Schedule& schedule : out.owned) {
      out.schedules.push_back(&schedule);
    }
    for (int node = 0; node < topology_.nodes(); ++node) {
      const std::uint32_t node_role = node_role_[static_cast<std::size_t>(node)];
      std::vector<std::uint32_t>& locals = out.locals[node_role];
      if (locals.empty()) {
        out.rack[node_role] = rack_role_[static_cast<std::size_t>(topology_.rack_of_node(node))];
        out.node_in_rack[node_role] = place_in_rack(topology_, node);
        for (const int rank : topology_.members(node)) {
          locals.push_back(role_[static_cast<std::size_t>(rank)]);
          out.node[locals.back()] = node_role;
        }
      }
    }
    return out;
  }

  Result<Roles> every_rank() const {
    std::vector<Schedule> all;
    std::size_t steps = 0;
    for (int rank = 0; rank < topology_.ranks(); ++rank) {
      ISTHMUS_ASSIGN(Schedule schedule, source_(static_cast<std::uint32_t>(rank)));
      steps += schedule.steps.size();
      if (steps > Roles::kRoleStepsMax) {
        return Error{Code::kResource, 0, -1,
                     fmt::format("The {} ranks of {} do too different things to be simulated: they "
                                 "have more than {} steps. Fewer ranks (a power of two of nodes), "
                                 "or another algorithm, can be.",
                                 topology_.ranks(), schedule.algorithm, Roles::kRoleStepsMax)};
      }
      all.push_back(std::move(schedule));
    }
    ISTHMUS_ASSIGN(Roles out, Roles::apart(all, topology_));
    out.owned = std::move(all);  // what out.schedules points to stays where it is
    return out;
  }

  const ScheduleSource& source_;
  const Topology& topology_;
  const std::size_t bytes_;
  std::size_t before_ = 0;
  std::vector<std::uint32_t> known_;  // roles that the pass before told apart, by rank
  std::vector<std::uint32_t> role_;
  std::vector<std::uint32_t> refined_;
  std::vector<std::uint32_t> node_role_;
  std::size_t node_roles_ = 0;
  std::vector<std::uint32_t> rack_role_;
  std::vector<Schedule> kept_;                    // of each role, its lowest rank's
  std::vector<std::vector<std::uint64_t>> sums_;  // of each role and step, over its ranks' messages
  std::vector<std::uint32_t> members_;            // ranks of each role
  std::vector<std::vector<MessageEnd>> ends_;
};

}  // namespace

Result<Roles> Roles::apart(std::span<const Schedule> schedules, const Topology& topology) {
  Roles out;
  std::unordered_map<std::uint64_t, MessageEnd> sent;
  for (std::uint32_t rank = 0; rank < schedules.size(); ++rank) {
    const std::vector<Step>& steps = schedules[rank].steps;
    out.schedules.push_back(&schedules[rank]);
    out.of_rank.push_back(rank);
    out.node.push_back(static_cast<std::uint32_t>(topology.node_of(static_cast<int>(rank))));
    out.ends.emplace_back(steps.size());
    for (std::uint32_t step = 0; step < steps.size(); ++step) {
      if (steps[step].kind == StepKind::kSend) {
        sent[message_key(rank, steps[step])] = {rank, step};
      }
    }
  }
  for (int node = 0; node < topology.nodes(); ++node) {
    const std::span<const int> members = topology.members(node);
    out.of_node.push_back(static_cast<std::uint32_t>(node));
    out.rack.push_back(static_cast<std::uint32_t>(topology.rack_of_node(node)));
    out.node_in_rack.push_back(place_in_rack(topology, node));
    out.locals.emplace_back(members.begin(), members.end());
  }
  for (int rack = 0; rack < topology.racks(); ++rack) {
    out.of_rack.push_back(static_cast<std::uint32_t>(rack));
  }
  for (std::uint32_t rank = 0; rank < schedules.size(); ++rank) {
    const std::vector<Step>& steps = schedules[rank].steps;
    for (std::uint32_t step = 0; step < steps.size(); ++step) {
      if (steps[step].kind == StepKind::kRecv) {
        const auto found = sent.find(message_key(rank, steps[step]));
        if (found == sent.end()) {
          return unpaired(schedules[rank], steps[step]);
        }
        out.ends[rank][step] = found->second;
        out.ends[found->second.role][found->second.step] = {rank, step};
      }
    }
  }
  for (const Schedule* schedule : out.schedules) {
    for (std::size_t step = 0; step < schedule->steps.size(); ++step) {
      if (is_message(schedule->steps[step]) &&
          out.ends[schedule->rank][step].role == MessageEnd::kNone) {
        return unpaired(*schedule, schedule->steps[step]);
      }
    }
  }
  return out;
}

Result<Roles> Roles::fold(const ScheduleSource& source, const Topology& topology,
                          std::size_t bytes) {
  return Folder(source, topology, bytes).run();
}

}  // namespace isthmus
