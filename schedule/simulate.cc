#include "schedule/simulate.h"

#include <algorithm>
#include <functional>
#include <queue>
#include <tuple>
#include <utility>

#include <fmt/format.h>

#include "schedule/cost.h"

namespace isthmus {

namespace {

constexpr double kMib = 1048576.0;

// In what follows a rank is a role, and a node a node role: where nothing is folded, themselves.
class Simulator {
 public:
  Simulator(const Roles& roles, const Topology& topology, std::size_t bytes,
            const SimulateOptions& options)
      : roles_(roles),
        topology_(topology),
        options_(options),
        geometry_(roles.schedules[0]->partition, bytes),
        out_free_(roles.locals.size(), 0.0),
        in_free_(out_free_),
        neck_busy_(out_free_),
        neck_out_(out_free_.size(), 0),
        rack_out_free_(racks_of(roles), 0.0),
        rack_in_free_(rack_out_free_),
        rack_busy_(rack_out_free_),
        rack_out_(rack_out_free_.size(), 0),
        end_us_(roles.count(), 0.0),
        inside_free_(roles.count(), 0.0) {}

  Result<Simulation> run() {
    prepare();
    while (!events_.empty()) {
      const Event event = events_.top();
      events_.pop();
      now_ = event.time;
      wave_ = event.wave;
      handle(event);
    }
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
      if (ranks_[rank].open > 0) {
        return Error{
            Code::kInternal, 0, -1,
            fmt::format("The simulation of {} stops: {} steps of rank {} never end.",
                        schedule_of(rank).algorithm, ranks_[rank].open, schedule_of(rank).rank)};
      }
    }
    return result();
  }

 private:
  enum class What : std::uint8_t {
    kReady,
    kCoreFree,
    kLeave,
    kLeaveRack,
    kEnterRack,
    kOnWire,
    kDone
  };

  static std::size_t racks_of(const Roles& roles) {
    return 1U + *std::max_element(roles.rack.begin(), roles.rack.end());
  }

  // Events of one moment are ordered by what every rank of a role has in common, so that all of
  // them see the same order. `wave` is how many events of this moment led to this one.
  struct Event {
    double time = 0.0;
    std::uint32_t wave = 0;
    What what = What::kReady;
    std::uint32_t node = 0;   // in its rack: the rank's, or the receiver's of what is on the wire
    std::uint32_t local = 0;  // the same in its node
    std::uint32_t order = 0;  // and the step
    std::uint32_t rank = 0;
    std::uint32_t step = 0;

    bool operator>(const Event& other) const {
      return time != other.time ? time > other.time
                                : std::tie(wave, what, node, local, order, rank) >
                                      std::tie(other.wave, other.what, other.node, other.local,
                                               other.order, other.rank);
    }
  };

  // A message, kept by its receiver's step.
  struct Message {
    double arrives = -1.0;
    double in_rack = 0.0;  // its last byte
    bool sent = false;
    bool posted = false;
    bool moving = false;
  };

  struct Rank {
    explicit Rank(const RankWork& rates) : work(rates) {}

    RankWork work;
    std::uint32_t local = 0;
    std::vector<std::uint32_t> waits;
    std::vector<double> starts;      // when a timeline is wanted
    std::vector<Message> messages;   // by step
    std::queue<std::uint32_t> core;  // steps that wait for the core
    bool core_busy = false;
    std::size_t open = 0;
    std::vector<std::pair<std::uint32_t, double>> lines[kProgressLines];  // value, seen from
    std::vector<std::uint32_t> awaiting;                                  // Await steps begun
  };

  const Schedule& schedule_of(std::size_t rank) const { return *roles_.schedules[rank]; }

  const Step& step_at(std::uint32_t rank, std::uint32_t step) const {
    return schedule_of(rank).steps[step];
  }

  // At this moment: after all events of this wave.
  void happens(double time, What what, std::uint32_t rank, std::uint32_t step) {
    MessageEnd at = {rank, step};
    if (what == What::kOnWire || what == What::kEnterRack) {
      at = roles_.ends[rank][step];
    }
    events_.push({time, time == now_ ? wave_ + 1 : 0, what,
                  roles_.node_in_rack[roles_.node[at.role]], ranks_[at.role].local, at.step, rank,
                  step});
  }

  void handle(const Event& event) {
    switch (event.what) {
      case What::kReady:
        begin(event.rank, event.step);
        break;
      case What::kCoreFree:
        serve_core(event.rank);
        break;
      case What::kLeave:
        leave(event.rank, event.step);
        break;
      case What::kLeaveRack:
        leave_rack(event.rank, event.step);
        break;
      case What::kEnterRack:
        enter_rack(event.rank, event.step);
        break;
      case What::kOnWire:
        enter(event.rank, event.step);
        break;
      case What::kDone:
        finish(event.rank, event.step);
        break;
    }
  }

  void prepare() {
    ranks_.reserve(roles_.count());
    for (std::uint32_t rank = 0; rank < roles_.count(); ++rank) {
      const Schedule& schedule = schedule_of(rank);
      Rank state(RankWork(schedule, geometry_, topology_));
      state.open = schedule.steps.size();
      steps_ += state.open;
      state.messages.resize(state.open);
      if (options_.timeline) {
        state.starts.assign(state.open, 0.0);
      }
      if (!schedule.in_order) {
        state.waits = schedule.wait_count;
      }
      ranks_.push_back(std::move(state));
    }
    for (const std::vector<std::uint32_t>& locals : roles_.locals) {
      for (std::uint32_t local = 0; local < locals.size(); ++local) {
        ranks_[locals[local]].local = local;
      }
    }
    for (std::uint32_t rank = 0; rank < ranks_.size(); ++rank) {
      const double start = options_.starts_us.empty() ? 0.0 : options_.starts_us[rank];
      const Schedule& schedule = schedule_of(rank);
      end_us_[rank] = start;
      for (std::uint32_t step = 0; step < schedule.steps.size(); ++step) {
        if (schedule.in_order ? step == 0 : ranks_[rank].waits[step] == 0) {
          happens(start, What::kReady, rank, step);
        }
      }
    }
  }

  void begin(std::uint32_t rank, std::uint32_t index) {
    Rank& state = ranks_[rank];
    if (options_.timeline) {
      state.starts[index] = now_;
    }
    const Step& step = step_at(rank, index);
    switch (step.kind) {
      case StepKind::kCopy:
      case StepKind::kReduce:
        state.core.push(index);
        serve_core(rank);
        return;
      case StepKind::kSend:
      case StepKind::kRecv:
        post(rank, index);
        return;
      case StepKind::kPublish:
        state.lines[step.line].emplace_back(step.value, now_ + topology_.inside().alpha_us);
        finish(rank, index);
        for (const std::uint32_t other : neighbours(rank)) {
          check_awaits(other);
        }
        return;
      case StepKind::kAwait:
        state.awaiting.push_back(index);
        check_awaits(rank);
        return;
    }
  }

  void serve_core(std::uint32_t rank) {
    Rank& state = ranks_[rank];
    if (state.core_busy || state.core.empty()) {
      return;
    }
    state.core_busy = true;
    const std::uint32_t index = state.core.front();
    state.core.pop();
    const Step& step = step_at(rank, index);
    const auto bytes = static_cast<double>(geometry_.length(step.begin, step.end));
    happens(now_ + state.work.us(step, bytes), What::kDone, rank, index);
  }

  std::span<const std::uint32_t> neighbours(std::uint32_t rank) const {
    return roles_.locals[roles_.node[rank]];
  }

  // When the awaited lines are seen, negative while one is not even published.
  double seen_at(std::uint32_t rank, const Step& step) const {
    double seen = now_;
    for (std::uint32_t local = step.peer; local < step.peer + step.count; ++local) {
      const std::uint32_t owner = neighbours(rank)[local];
      if (owner == rank) {
        continue;
      }
      // Values grow.
      const auto& line = ranks_[owner].lines[step.line];
      const auto found = std::lower_bound(
          line.begin(), line.end(), step.value,
          [](const auto& published, std::uint32_t value) { return published.first < value; });
      if (found == line.end()) {
        return -1.0;
      }
      seen = std::max(seen, found->second);
    }
    return seen;
  }

  void check_awaits(std::uint32_t rank) {
    std::vector<std::uint32_t>& awaiting = ranks_[rank].awaiting;
    for (std::size_t i = 0; i < awaiting.size();) {
      const double seen = seen_at(rank, step_at(rank, awaiting[i]));
      if (seen < 0.0) {
        ++i;
        continue;
      }
      happens(seen, What::kDone, rank, awaiting[i]);
      awaiting.erase(awaiting.begin() + static_cast<std::ptrdiff_t>(i));
    }
  }

  // One side of a message is ready; the transfer begins as soon as the delivery allows.
  void post(std::uint32_t rank, std::uint32_t index) {
    const bool is_send = step_at(rank, index).kind == StepKind::kSend;
    const MessageEnd own = {rank, index};
    const MessageEnd other = roles_.ends[rank][index];
    const MessageEnd& from = is_send ? own : other;
    const MessageEnd& to = is_send ? other : own;
    Message& message = ranks_[to.role].messages[to.step];
    (is_send ? message.sent : message.posted) = true;
    const bool may_move = message.sent && (options_.delivery == Delivery::kEager || message.posted);
    if (may_move && !message.moving) {
      message.moving = true;
      happens(now_, What::kLeave, from.role, from.step);
    } else if (!is_send && message.arrives >= 0.0) {
      happens(std::max(now_, message.arrives), What::kDone, rank, index);
    }
  }

  // Which link a message takes: that between nodes, also within one, or that across racks.
  enum class Way : std::uint8_t { kInside, kBetween, kAcross };

  Way way(std::uint32_t from, const Step& step) const {
    const int node = topology_.node_of(static_cast<int>(schedule_of(from).rank));
    const int other = topology_.node_of(static_cast<int>(step.peer));
    if (node == other) {
      return Way::kInside;
    }
    return topology_.rack_of_node(node) == topology_.rack_of_node(other) ? Way::kBetween
                                                                         : Way::kAcross;
  }

  double wire_us(std::size_t bytes) const {
    return static_cast<double>(bytes) / kMib * topology_.between().beta_us_per_mib;
  }

  double across_us(std::size_t bytes) const {
    return static_cast<double>(bytes) / kMib * topology_.across().beta_us_per_mib;
  }

  std::size_t bytes_of(std::uint32_t rank, std::uint32_t index) const {
    const Step& step = step_at(rank, index);
    return geometry_.length(step.begin, step.end);
  }

  // The message takes its turn on its node's way out, or on its rank's way within the node.
  void leave(std::uint32_t from, std::uint32_t send_step) {
    const std::size_t bytes = bytes_of(from, send_step);
    const std::uint32_t node = roles_.node[from];
    const Way to = way(from, step_at(from, send_step));
    const bool out = to != Way::kInside;
    double& free = out ? out_free_[node] : inside_free_[from];
    const double start = std::max(now_, free);
    free = start + wire_us(bytes);
    if (out) {
      neck_busy_[node] += wire_us(bytes);
      neck_out_[node] += bytes;
    }
    happens(start, to == Way::kAcross ? What::kLeaveRack : What::kOnWire, from, send_step);
    happens(free, What::kDone, from, send_step);
  }

  // Its turn on its rack's way out, then on the other's way in.
  void leave_rack(std::uint32_t from, std::uint32_t send_step) {
    const std::size_t bytes = bytes_of(from, send_step);
    const std::uint32_t rack = roles_.rack[roles_.node[from]];
    const double start = std::max(now_, rack_out_free_[rack]);
    rack_out_free_[rack] = start + across_us(bytes);
    rack_busy_[rack] += across_us(bytes);
    rack_out_[rack] += bytes;
    happens(start, What::kEnterRack, from, send_step);
  }

  void enter_rack(std::uint32_t from, std::uint32_t send_step) {
    const MessageEnd to = roles_.ends[from][send_step];
    double& free = rack_in_free_[roles_.rack[roles_.node[to.role]]];
    const double start = std::max(now_, free);
    free = start + across_us(bytes_of(from, send_step));
    ranks_[to.role].messages[to.step].in_rack = free;
    happens(start, What::kOnWire, from, send_step);
  }

  // Its first byte is on the wire: ways in serve messages in the order of that.
  void enter(std::uint32_t from, std::uint32_t send_step) {
    const double wire = wire_us(bytes_of(from, send_step));
    const MessageEnd to = roles_.ends[from][send_step];
    const Way over = way(from, step_at(from, send_step));
    double end = now_ + wire;
    if (over != Way::kInside) {
      double& free = in_free_[roles_.node[to.role]];
      end = std::max(now_, free) + wire;
      free = end;
    }
    Message& message = ranks_[to.role].messages[to.step];
    message.arrives = std::max(end, message.in_rack) +
                      (over == Way::kAcross ? topology_.across() : topology_.between()).alpha_us;
    if (message.posted) {
      happens(message.arrives, What::kDone, to.role, to.step);
    }
  }

  void finish(std::uint32_t rank, std::uint32_t index) {
    Rank& state = ranks_[rank];
    const Schedule& schedule = schedule_of(rank);
    const StepKind kind = schedule.steps[index].kind;
    --state.open;
    end_us_[rank] = std::max(end_us_[rank], now_);
    if (options_.timeline) {
      timeline_.push_back({schedule.rank, index, state.starts[index], now_});
    }
    if (kind == StepKind::kCopy || kind == StepKind::kReduce) {
      state.core_busy = false;
      happens(now_, What::kCoreFree, rank, 0);
    }
    if (schedule.in_order) {
      if (index + 1 < schedule.steps.size()) {
        happens(now_, What::kReady, rank, index + 1);
      }
      return;
    }
    for (std::uint32_t at = schedule.release_begin[index]; at < schedule.release_begin[index + 1];
         ++at) {
      if (--state.waits[schedule.releases[at]] == 0) {
        happens(now_, What::kReady, rank, schedule.releases[at]);
      }
    }
  }

  // What each rank and each node did, from what their roles did.
  Simulation result() {
    Simulation out;
    for (const std::uint32_t role : roles_.of_rank) {
      out.end_us.push_back(end_us_[role]);
      out.makespan_us = std::max(out.makespan_us, end_us_[role]);
    }
    for (const std::uint32_t role : roles_.of_node) {
      out.neck_busy_us.push_back(neck_busy_[role]);
      out.neck_out.push_back(neck_out_[role]);
    }
    for (const std::uint32_t role : roles_.of_rack) {
      out.rack_busy_us.push_back(rack_busy_[role]);
      out.rack_out.push_back(rack_out_[role]);
    }
    out.timeline = std::move(timeline_);
    out.roles = roles_.count();
    out.steps = steps_;
    return out;
  }

  const Roles& roles_;
  const Topology& topology_;
  const SimulateOptions& options_;
  const Geometry geometry_;
  double now_ = -1.0;
  std::uint32_t wave_ = 0;
  std::vector<double> out_free_;  // when each node's way out, and in, is free again
  std::vector<double> in_free_;
  std::vector<double> neck_busy_;
  std::vector<std::size_t> neck_out_;
  std::vector<double> rack_out_free_;  // the same of each rack
  std::vector<double> rack_in_free_;
  std::vector<double> rack_busy_;
  std::vector<std::size_t> rack_out_;
  std::vector<double> end_us_;
  std::vector<double> inside_free_;  // when each rank's way to its own node is free again
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  std::vector<Rank> ranks_;
  std::vector<StepTimes> timeline_;
  std::size_t steps_ = 0;
};

}  // namespace

Result<Simulation> simulate(std::span<const Schedule> schedules, const Topology& topology,
                            std::size_t bytes, const SimulateOptions& options) {
  const bool starts_fit = options.starts_us.empty() || options.starts_us.size() == schedules.size();
  if (schedules.empty() || schedules.size() != static_cast<std::size_t>(topology.ranks()) ||
      !starts_fit) {
    return Error{Code::kInvalidArgument, 0, -1,
                 fmt::format("A simulation of {} ranks got {} schedules and {} start times.",
                             topology.ranks(), schedules.size(), options.starts_us.size())};
  }
  ISTHMUS_ASSIGN(const Roles roles, Roles::apart(schedules, topology));
  return Simulator(roles, topology, bytes, options).run();
}

Result<Simulation> simulate(const ScheduleSource& source, const Topology& topology,
                            std::size_t bytes, const SimulateOptions& options) {
  if (!options.starts_us.empty() || topology.ranks() == 0) {
    return Error{Code::kInvalidArgument, 0, -1,
                 fmt::format("A simulation of {} ranks by what they do alike got {} start times; "
                             "all of them call at once.",
                             topology.ranks(), options.starts_us.size())};
  }
  ISTHMUS_ASSIGN(const Roles roles, Roles::fold(source, topology, bytes));
  return Simulator(roles, topology, bytes, options).run();
}

}  // namespace isthmus
