#include "schedule/simulate.h"

#include <algorithm>
#include <functional>
#include <queue>
#include <unordered_map>
#include <utility>

#include <fmt/format.h>

#include "schedule/cost.h"

namespace isthmus {

namespace {

constexpr double kMib = 1048576.0;

class Simulator {
 public:
  Simulator(std::span<const Schedule> schedules, const Topology& topology, std::size_t bytes,
            const SimulateOptions& options)
      : schedules_(schedules),
        topology_(topology),
        options_(options),
        geometry_(schedules[0].partition, bytes),
        out_free_(static_cast<std::size_t>(topology.nodes()), 0.0),
        in_free_(out_free_),
        inside_free_(schedules.size(), 0.0) {}

  Result<Simulation> run() {
    prepare();
    while (!events_.empty()) {
      const Event event = events_.top();
      events_.pop();
      now_ = event.time;
      switch (event.what) {
        case What::kReady:
          begin(event.rank, event.step);
          break;
        case What::kCoreFree:
          serve_core(event.rank);
          break;
        case What::kOnWire:
          enter(event.rank, event.step);
          break;
        case What::kDone:
          finish(event.rank, event.step);
          break;
      }
    }
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
      if (ranks_[rank].open > 0) {
        return Error{Code::kInternal, 0, -1,
                     fmt::format("The simulation of {} stops: {} steps of rank {} never end.",
                                 schedules_[rank].algorithm, ranks_[rank].open, rank)};
      }
      result_.makespan_us = std::max(result_.makespan_us, result_.end_us[rank]);
    }
    return std::move(result_);
  }

 private:
  enum class What : std::uint8_t { kReady, kCoreFree, kOnWire, kDone };

  struct Event {
    double time = 0.0;
    std::uint64_t number = 0;  // ties in order of creation: the same run every time
    What what = What::kReady;
    std::uint32_t rank = 0;
    std::uint32_t step = 0;

    bool operator>(const Event& other) const {
      return time != other.time ? time > other.time : number > other.number;
    }
  };

  struct Rank {
    std::vector<std::uint32_t> waits;
    std::vector<double> starts;
    std::queue<std::uint32_t> core;  // steps that wait for the core
    bool core_busy = false;
    std::size_t open = 0;
    std::vector<std::pair<std::uint32_t, double>> lines[kProgressLines];  // value, seen from
    std::vector<std::uint32_t> awaiting;                                  // Await steps begun
  };

  struct Message {
    std::uint32_t send_step = 0;
    std::uint32_t recv_step = 0;
    double arrives = -1.0;
    bool sent = false;
    bool posted = false;
    bool moving = false;
  };

  void schedule_event(double time, What what, std::uint32_t rank, std::uint32_t step) {
    events_.push({time, ++numbers_, what, rank, step});
  }

  void prepare() {
    ranks_.resize(schedules_.size());
    result_.end_us.assign(schedules_.size(), 0.0);
    result_.neck_busy_us.assign(out_free_.size(), 0.0);
    result_.neck_out.assign(out_free_.size(), 0);
    for (std::uint32_t rank = 0; rank < ranks_.size(); ++rank) {
      const Schedule& schedule = schedules_[rank];
      Rank& state = ranks_[rank];
      state.open = schedule.steps.size();
      state.starts.assign(schedule.steps.size(), 0.0);
      const double start = options_.starts_us.empty() ? 0.0 : options_.starts_us[rank];
      result_.end_us[rank] = start;
      if (!schedule.in_order) {
        state.waits = schedule.wait_count;
      }
      for (std::uint32_t step = 0; step < schedule.steps.size(); ++step) {
        if (schedule.in_order ? step == 0 : state.waits[step] == 0) {
          schedule_event(start, What::kReady, rank, step);
        }
      }
    }
  }

  const Step& step_at(std::uint32_t rank, std::uint32_t step) const {
    return schedules_[rank].steps[step];
  }

  void begin(std::uint32_t rank, std::uint32_t index) {
    Rank& state = ranks_[rank];
    state.starts[index] = now_;
    const Step& step = step_at(rank, index);
    switch (step.kind) {
      case StepKind::kCopy:
      case StepKind::kReduce:
        state.core.push(index);
        serve_core(rank);
        return;
      case StepKind::kSend:
        post(rank, index, true);
        return;
      case StepKind::kRecv:
        post(rank, index, false);
        return;
      case StepKind::kPublish:
        state.lines[step.line].emplace_back(step.value, now_ + topology_.inside().alpha_us);
        finish(rank, index);
        wake_neighbours(rank);
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
    schedule_event(now_ + core_us(step_at(rank, index), schedules_[rank], geometry_, topology_),
                   What::kDone, rank, index);
  }

  std::span<const int> neighbours(std::uint32_t rank) const {
    return topology_.members(topology_.node_of(static_cast<int>(rank)));
  }

  void wake_neighbours(std::uint32_t rank) {
    for (const int other : neighbours(rank)) {
      check_awaits(static_cast<std::uint32_t>(other));
    }
  }

  // When the awaited lines are seen, negative while one is not even published.
  double seen_at(std::uint32_t rank, const Step& step) const {
    double seen = now_;
    for (std::uint32_t local = step.peer; local < step.peer + step.count; ++local) {
      const auto owner = static_cast<std::uint32_t>(neighbours(rank)[local]);
      if (owner == rank) {
        continue;
      }
      const auto& line = ranks_[owner].lines[step.line];
      const auto found = std::find_if(line.begin(), line.end(), [&](const auto& published) {
        return published.first >= step.value;
      });
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
      schedule_event(seen, What::kDone, rank, awaiting[i]);
      awaiting.erase(awaiting.begin() + static_cast<std::ptrdiff_t>(i));
    }
  }

  Message& message_of(std::uint32_t from, std::uint32_t to, std::uint32_t number) {
    const std::uint64_t lane = static_cast<std::uint64_t>(from) * schedules_.size() + to;
    return messages_[lane * 65536 + number];
  }

  // One side of a message is ready; the transfer begins as soon as the delivery allows.
  void post(std::uint32_t rank, std::uint32_t index, bool is_send) {
    const Step& step = step_at(rank, index);
    const std::uint32_t from = is_send ? rank : step.peer;
    const std::uint32_t to = is_send ? step.peer : rank;
    Message& message = message_of(from, to, step.value);
    (is_send ? message.sent : message.posted) = true;
    (is_send ? message.send_step : message.recv_step) = index;
    const bool may_move = message.sent && (options_.delivery == Delivery::kEager || message.posted);
    if (may_move && !message.moving) {
      message.moving = true;
      leave(from, message.send_step);
    } else if (!is_send && message.arrives >= 0.0) {
      schedule_event(std::max(now_, message.arrives), What::kDone, to, index);
    }
  }

  std::size_t node_of(std::uint32_t rank) const {
    return static_cast<std::size_t>(topology_.node_of(static_cast<int>(rank)));
  }

  double wire_us(std::uint32_t rank, std::uint32_t index) const {
    const Step& step = step_at(rank, index);
    return static_cast<double>(geometry_.length(step.begin, step.end)) / kMib *
           topology_.between().beta_us_per_mib;
  }

  // The message takes its turn on its node's way out, or on its rank's way within the node.
  void leave(std::uint32_t from, std::uint32_t send_step) {
    const Step& step = step_at(from, send_step);
    const bool crosses = node_of(from) != node_of(step.peer);
    double& free = crosses ? out_free_[node_of(from)] : inside_free_[from];
    const double start = std::max(now_, free);
    free = start + wire_us(from, send_step);
    if (crosses) {
      result_.neck_busy_us[node_of(from)] += wire_us(from, send_step);
      result_.neck_out[node_of(from)] += geometry_.length(step.begin, step.end);
    }
    schedule_event(start, What::kOnWire, from, send_step);
    schedule_event(free, What::kDone, from, send_step);
  }

  // Its first byte is on the wire: ways in serve messages in the order of that.
  void enter(std::uint32_t from, std::uint32_t send_step) {
    const Step& step = step_at(from, send_step);
    double end = now_ + wire_us(from, send_step);
    if (node_of(from) != node_of(step.peer)) {
      double& free = in_free_[node_of(step.peer)];
      end = std::max(now_, free) + wire_us(from, send_step);
      free = end;
    }
    Message& message = message_of(from, step.peer, step.value);
    message.arrives = end + topology_.between().alpha_us;
    if (message.posted) {
      schedule_event(message.arrives, What::kDone, step.peer, message.recv_step);
    }
  }

  void finish(std::uint32_t rank, std::uint32_t index) {
    Rank& state = ranks_[rank];
    const Schedule& schedule = schedules_[rank];
    const StepKind kind = step_at(rank, index).kind;
    --state.open;
    result_.end_us[rank] = std::max(result_.end_us[rank], now_);
    if (options_.timeline) {
      result_.timeline.push_back({rank, index, state.starts[index], now_});
    }
    if (kind == StepKind::kCopy || kind == StepKind::kReduce) {
      state.core_busy = false;
      schedule_event(now_, What::kCoreFree, rank, 0);
    }
    if (schedule.in_order) {
      if (index + 1 < schedule.steps.size()) {
        schedule_event(now_, What::kReady, rank, index + 1);
      }
      return;
    }
    for (std::uint32_t at = schedule.release_begin[index]; at < schedule.release_begin[index + 1];
         ++at) {
      if (--state.waits[schedule.releases[at]] == 0) {
        schedule_event(now_, What::kReady, rank, schedule.releases[at]);
      }
    }
  }

  std::span<const Schedule> schedules_;
  const Topology& topology_;
  const SimulateOptions& options_;
  const Geometry geometry_;
  double now_ = 0.0;
  std::uint64_t numbers_ = 0;
  std::vector<double> out_free_;  // when each node's way out, and in, is free again
  std::vector<double> in_free_;
  std::vector<double> inside_free_;  // when each rank's way to its own node is free again
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  std::vector<Rank> ranks_;
  std::unordered_map<std::uint64_t, Message> messages_;
  Simulation result_;
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
  return Simulator(schedules, topology, bytes, options).run();
}

}  // namespace isthmus
