#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "schedule/schedule.h"

namespace isthmus::proof {

inline constexpr std::uint32_t kNone = 0xffffffffU;

// What the dependencies of one rank's schedule order: which steps precede which, and where each
// step stands between the rank's Publish and Await steps (its line events, which form one chain).
class LocalOrder {
 public:
  // The schedule must outlive this. Fails when dependencies are malformed, line events are not
  // ordered, or a line's values do not grow.
  static Result<LocalOrder> make(const Schedule& schedule);

  // Step `earlier` is over before `later` starts.
  bool before(std::uint32_t earlier, std::uint32_t later) const {
    return in_order_ ? earlier < later : follows(earlier, later);
  }

  // Steps that are line events, in their order.
  std::span<const std::uint32_t> events() const { return events_; }

  // Index in events() of a step, kNone when it is none.
  std::uint32_t event_of(std::uint32_t step) const { return event_of_[step]; }

  // The latest Await (as an event) that is over before the step starts, and the earliest Publish
  // that starts after the step is over; kNone when there is none.
  std::uint32_t acquired(std::uint32_t step) const { return acquired_[step]; }

  std::uint32_t released(std::uint32_t step) const { return released_[step]; }

  // The first Publish step that gives `line` at least `value`; kNone when there is none.
  std::uint32_t publisher(std::uint8_t line, std::uint32_t value) const;

 private:
  bool follows(std::uint32_t earlier, std::uint32_t later) const;
  Status check_dependencies(const Schedule& schedule) const;
  void invert(const Schedule& schedule);
  void close() const;
  Status chain_events(const Schedule& schedule);
  void place_between_events(const Schedule& schedule);

  bool in_order_ = true;
  std::vector<std::uint32_t> depends_begin_;  // rows of depends_: what each step waits for
  std::vector<std::uint32_t> depends_;
  // Row i: the steps before step i. Filled by the first question that no single dependency answers:
  // schedules made by Builder ask none. Hence one thread at a time.
  mutable std::vector<std::uint64_t> reach_;
  mutable std::size_t words_ = 0;  // of one row
  std::vector<std::uint32_t> events_;
  std::vector<std::uint32_t> event_of_;
  std::vector<std::uint32_t> acquired_;
  std::vector<std::uint32_t> released_;
  std::vector<std::uint32_t> published_[kProgressLines];  // Publish steps of each line, in order
  const Schedule* schedule_ = nullptr;
};

// "rank 3, step 17 (Recv from rank 2, ...): " and what is wrong, as an Error.
Error fault(const Schedule& schedule, std::size_t step, std::string_view what);

}  // namespace isthmus::proof
