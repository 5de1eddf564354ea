#include "schedule/verify_order.h"

#include <algorithm>
#include <string_view>

#include <fmt/format.h>

namespace isthmus::proof {

Error fault(const Schedule& schedule, std::size_t step, std::string_view what) {
  std::string where = fmt::format("{} by {}, rank {} of {}", op_kind_name(schedule.op),
                                  schedule.algorithm, schedule.rank, schedule.ranks);
  if (step < schedule.steps.size()) {
    where += fmt::format(", step {} ({})", step, describe(schedule.steps[step]));
  }
  return {Code::kInternal, 0, -1, fmt::format("{}: {}.", where, what)};
}

Result<LocalOrder> LocalOrder::make(const Schedule& schedule) {
  LocalOrder order;
  order.schedule_ = &schedule;
  order.in_order_ = schedule.in_order;
  if (!schedule.in_order) {
    ISTHMUS_TRY(order.check_dependencies(schedule));
    order.invert(schedule);
  }
  ISTHMUS_TRY(order.chain_events(schedule));
  order.place_between_events(schedule);
  return order;
}

Status LocalOrder::check_dependencies(const Schedule& schedule) const {
  const std::size_t steps = schedule.steps.size();
  if (schedule.release_begin.size() != steps + 1 || schedule.wait_count.size() != steps ||
      schedule.release_begin[0] != 0 || schedule.release_begin[steps] != schedule.releases.size()) {
    return fault(schedule, steps, "the lists of dependencies have the wrong lengths");
  }
  std::vector<std::uint32_t> waits(steps, 0);
  for (std::size_t step = 0; step < steps; ++step) {
    if (schedule.release_begin[step] > schedule.release_begin[step + 1]) {
      return fault(schedule, step, "its list of released steps is malformed");
    }
    for (std::uint32_t at = schedule.release_begin[step]; at < schedule.release_begin[step + 1];
         ++at) {
      const std::uint32_t released = schedule.releases[at];
      if (released <= step || released >= steps) {
        return fault(schedule, step, "it releases a step that is not a later one");
      }
      ++waits[released];
    }
  }
  for (std::size_t step = 0; step < steps; ++step) {
    if (waits[step] != schedule.wait_count[step]) {
      return fault(schedule, step,
                   fmt::format("it waits for {} steps, but {} release it",
                               schedule.wait_count[step], waits[step]));
    }
  }
  return {};
}

void LocalOrder::invert(const Schedule& schedule) {
  const std::size_t steps = schedule.steps.size();
  depends_begin_.assign(steps + 1, 0);
  for (std::size_t step = 0; step < steps; ++step) {
    depends_begin_[step + 1] = depends_begin_[step] + schedule.wait_count[step];
  }
  depends_.resize(schedule.releases.size());
  std::vector<std::uint32_t> next(depends_begin_.begin(), depends_begin_.end() - 1);
  for (std::uint32_t step = 0; step < steps; ++step) {
    for (std::uint32_t at = schedule.release_begin[step]; at < schedule.release_begin[step + 1];
         ++at) {
      depends_[next[schedule.releases[at]]++] = step;
    }
  }
}

bool LocalOrder::follows(std::uint32_t earlier, std::uint32_t later) const {
  if (earlier >= later) {
    return false;
  }
  for (std::uint32_t at = depends_begin_[later]; at < depends_begin_[later + 1]; ++at) {
    if (depends_[at] == earlier) {
      return true;
    }
  }
  if (reach_.empty()) {
    close();
  }
  return (reach_[later * words_ + earlier / 64] >> (earlier % 64) & 1U) != 0;
}

// Transitive closure: a step's row is the union of the rows of those it waits for, and them.
void LocalOrder::close() const {
  const std::size_t steps = depends_begin_.size() - 1;
  words_ = (steps + 63) / 64;
  reach_.assign(steps * words_, 0);
  for (std::size_t step = 0; step < steps; ++step) {
    std::uint64_t* to = reach_.data() + step * words_;
    for (std::uint32_t at = depends_begin_[step]; at < depends_begin_[step + 1]; ++at) {
      const std::size_t earlier = depends_[at];
      const std::uint64_t* from = reach_.data() + earlier * words_;
      for (std::size_t word = 0; word <= earlier / 64; ++word) {
        to[word] |= from[word];  // only steps before `earlier` have bits
      }
      to[earlier / 64] |= 1ULL << (earlier % 64);
    }
  }
}

Status LocalOrder::chain_events(const Schedule& schedule) {
  const std::size_t steps = schedule.steps.size();
  event_of_.assign(steps, kNone);
  std::uint32_t values[kProgressLines] = {};
  for (std::uint32_t index = 0; index < steps; ++index) {
    const Step& step = schedule.steps[index];
    const bool publishes = step.kind == StepKind::kPublish;
    if (!publishes && (step.kind != StepKind::kAwait || step.count == 0)) {
      continue;
    }
    if (step.line >= kProgressLines) {
      return fault(schedule, index, "there is no such line");
    }
    if (step.value == 0) {
      return fault(schedule, index, "every line holds 0 from the start: nothing is published");
    }
    if (!events_.empty() && !before(events_.back(), index)) {
      return fault(schedule, index,
                   fmt::format("it is not ordered after step {}, the Publish or Await before it",
                               events_.back()));
    }
    event_of_[index] = static_cast<std::uint32_t>(events_.size());
    events_.push_back(index);
    if (publishes) {
      if (step.value <= values[step.line] || (step.line == kAnnounceLine && step.value != 1)) {
        return fault(schedule, index, "a line's values must grow, and line 0 has only the value 1");
      }
      values[step.line] = step.value;
      published_[step.line].push_back(index);
    }
  }
  return {};
}

void LocalOrder::place_between_events(const Schedule& schedule) {
  const auto steps = static_cast<std::uint32_t>(schedule.steps.size());
  acquired_.assign(steps, kNone);
  released_.assign(steps, kNone);
  const auto is = [&](std::uint32_t step, StepKind kind) {
    return event_of_[step] != kNone && schedule.steps[step].kind == kind;
  };
  const auto later = [](std::uint32_t a, std::uint32_t b) {
    return a == kNone ? b : b == kNone ? a : std::max(a, b);
  };
  const auto for_each_edge = [&](std::uint32_t step, const auto& visit) {
    if (in_order_) {
      if (step + 1 < steps) {
        visit(step + 1);
      }
      return;
    }
    for (std::uint32_t at = schedule.release_begin[step]; at < schedule.release_begin[step + 1];
         ++at) {
      visit(schedule.releases[at]);
    }
  };
  for (std::uint32_t step = 0; step < steps; ++step) {
    const std::uint32_t own = is(step, StepKind::kAwait) ? event_of_[step] : kNone;
    const std::uint32_t passed = later(acquired_[step], own);
    for_each_edge(step,
                  [&](std::uint32_t next) { acquired_[next] = later(acquired_[next], passed); });
  }
  for (std::uint32_t step = steps; step-- > 0;) {
    // kNone is larger than every event: the minimum finds the earliest.
    for_each_edge(step, [&](std::uint32_t next) {
      const std::uint32_t own = is(next, StepKind::kPublish) ? event_of_[next] : kNone;
      released_[step] = std::min({released_[step], released_[next], own});
    });
  }
}

std::uint32_t LocalOrder::publisher(std::uint8_t line, std::uint32_t value) const {
  const std::vector<std::uint32_t>& steps = published_[line];
  const auto found = std::lower_bound(
      steps.begin(), steps.end(), value,
      [&](std::uint32_t step, std::uint32_t v) { return schedule_->steps[step].value < v; });
  return found == steps.end() ? kNone : *found;
}

}  // namespace isthmus::proof
