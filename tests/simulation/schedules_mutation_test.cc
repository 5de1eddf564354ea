// Goal: the proof catches faults. Method: 500 single edits, from a printed seed, to one step or one
// dependency of a right schedule. What verify() accepts must be harmless: the independent executor
// runs it in many random interleavings, in place and apart, eager and rendezvous, and every run
// must end with the right result. An edit that breaks a run but passes the proof fails this test.

#include <array>
#include <cstdint>
#include <cstdio>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "collectives/algorithms/algorithm.h"
#include "schedule/verify.h"
#include "tests/simulation/schedule_executor.h"
#include "tests/simulation/schedules.h"

namespace isthmus {
namespace {

constexpr std::uint64_t kSeed = 20261129;
constexpr int kMutations = 500;
constexpr std::uint64_t kInterleavings = 24;

struct Edit {
  std::string name;
  std::string text;  // what was changed
};

std::uint32_t nudged(std::uint32_t value, std::mt19937_64& random) {
  return value > 0 && random() % 2 == 0 ? value - 1 : value + 1;
}

// Takes edge number `edge` out of a schedule that runs by dependencies.
void drop_dependency(Schedule& schedule, std::uint32_t edge) {
  const std::uint32_t target = schedule.releases[edge];
  schedule.releases.erase(schedule.releases.begin() + edge);
  for (std::uint32_t& begin : schedule.release_begin) {
    begin -= begin > edge ? 1 : 0;
  }
  --schedule.wait_count[target];
}

void edit_place(Place& place, bool owner, std::mt19937_64& random) {
  if (owner && has_owner(place.space)) {
    place.local = nudged(place.local, random);
  } else {
    place.at = nudged(place.at, random);
  }
}

constexpr std::array kNames = {"peer",  "marks", "source", "destination", "owner",
                               "value", "line",  "count",  "finish",      "own input",
                               "drop",  "order", "swap",   "depend"};

// One edit of the named kind; an empty text when the step has nothing of that kind.
Edit edit_step(Schedule& schedule, std::uint32_t index, std::mt19937_64& random) {
  const std::size_t kind = random() % kNames.size();
  Step& step = schedule.steps[index];
  const Step before = step;
  Edit edit = {kNames[kind], ""};
  const bool line = step.kind == StepKind::kPublish || step.kind == StepKind::kAwait;
  const bool message = step.kind == StepKind::kSend || step.kind == StepKind::kRecv;
  switch (kind) {
    case 0:
      step.peer = message || step.kind == StepKind::kAwait ? nudged(step.peer, random) : step.peer;
      break;
    case 1:
      if (!line) {
        std::uint32_t& mark = random() % 2 == 0 ? step.begin : step.end;
        mark = nudged(mark, random);
      }
      break;
    case 2:
      edit_place(step.src, false, random);
      break;
    case 3:
      edit_place(step.dst, false, random);
      break;
    case 4:
      edit_place(step.src, true, random);
      break;
    case 5:
      step.value = line || message ? nudged(step.value, random) : step.value;
      break;
    case 6:
      step.line = line ? static_cast<std::uint8_t>((step.line + 1 + random() % 3) % 4) : step.line;
      break;
    case 7:
      step.count = nudged(step.count, random);
      break;
    case 8:
      step.finish = step.kind == StepKind::kReduce ? !step.finish : step.finish;
      break;
    case 9:
      step.own_input = step.kind == StepKind::kReduce ? !step.own_input : step.own_input;
      break;
    case 10:
      step = {};
      step.kind = StepKind::kAwait;  // of nobody: the step is gone, its dependencies stay
      break;
    case 11:
      step.src_first = step.kind == StepKind::kReduce ? !step.src_first : step.src_first;
      break;
    case 12:
      if (index + 1 < schedule.steps.size()) {
        std::swap(step, schedule.steps[index + 1]);
      }
      break;
    default:
      if (!schedule.releases.empty()) {
        const auto edge = static_cast<std::uint32_t>(random() % schedule.releases.size());
        edit.text = "dependency of step " + std::to_string(schedule.releases[edge]) + ", " +
                    describe(schedule.steps[schedule.releases[edge]]);
        drop_dependency(schedule, edge);
      }
      return edit;
  }
  if (describe(step) != describe(before)) {  // else a field that this kind of step does not use
    edit.text =
        "step " + std::to_string(index) + " from " + describe(before) + " to " + describe(step);
  }
  return edit;
}

bool accepted(const std::vector<Schedule>& schedules, const Topology& topology) {
  return verify(schedules, topology, Delivery::kEager).ok() &&
         verify(schedules, topology, Delivery::kRendezvous).ok();
}

// Empty when every interleaving gave the right result.
std::string broken_run(const std::vector<Schedule>& schedules, const Topology& topology) {
  for (std::uint64_t seed = 1; seed <= kInterleavings; ++seed) {
    for (int variant = 0; variant < 4; ++variant) {
      ScheduleExecutor::Options options;
      options.in_place = variant % 2 == 1;
      options.rendezvous = variant >= 2;
      options.seed = seed;
      ScheduleExecutor executor(schedules, topology, options);
      if (!executor.run()) {
        return executor.why();
      }
      if (!ScheduleExecutor::right(schedules, executor.outputs())) {
        return "a wrong result";
      }
    }
  }
  return "";
}

struct Subject {
  const Algorithm* algorithm;
  Topology topology;
  std::uint32_t root;
  Tuning tuning;
};

std::vector<Subject> subjects() {
  std::vector<Subject> result;
  const std::vector<Topology> topologies = {
      Topology::grid(1, 2),   Topology::grid(1, 3),
      Topology::grid(1, 4),   Topology::grid(2, 2),
      Topology::grid(3, 1),   Topology::make(std::vector<int>{0, 0, 0, 1, 1}).value(),
      Topology::grid(3, 2),   Topology::grid(4, 1, 2),
      Topology::grid(5, 2, 2)};
  for (const Algorithm& algorithm : algorithms()) {
    for (const Topology& topology : topologies) {
      if (fits_best(algorithm, topology, 0)) {
        const bool pieces = has_pieces(algorithm, topology);
        const bool rooted = op_traits(algorithm.op).rooted;
        result.push_back({&algorithm, topology,
                          rooted ? static_cast<std::uint32_t>(topology.ranks() - 1) : 0,
                          pieces ? Tuning{4, 2, 1} : Tuning{}});
      }
    }
  }
  return result;
}

TEST(MutationTest, EveryEditIsCaughtOrHarmless) {
  std::printf("seed %llu\n", static_cast<unsigned long long>(kSeed));
  std::mt19937_64 random(kSeed);
  const std::vector<Subject> all = subjects();
  std::map<std::string, std::pair<int, int>> counts;  // by kind: caught, harmless
  for (int made = 0; made < kMutations;) {
    const Subject& subject = all[random() % all.size()];
    std::vector<Schedule> schedules =
        build_all(*subject.algorithm, subject.topology, subject.root, subject.tuning);
    Schedule& schedule = schedules[random() % schedules.size()];
    const auto index = static_cast<std::uint32_t>(random() % schedule.steps.size());
    const Edit edit = edit_step(schedule, index, random);
    if (edit.text.empty()) {
      continue;  // nothing was changed
    }
    ++made;
    if (!accepted(schedules, subject.topology)) {
      ++counts[edit.name].first;
      continue;
    }
    ++counts[edit.name].second;
    const std::string broken = broken_run(schedules, subject.topology);
    EXPECT_EQ(broken, "") << where(*subject.algorithm, subject.topology, subject.root,
                                   subject.tuning)
                          << ", rank " << schedule.rank << ", " << edit.name << ": " << edit.text;
  }
  int caught = 0;
  for (const auto& [name, count] : counts) {
    std::printf("%-12s %4d caught %4d harmless\n", name.c_str(), count.first, count.second);
    caught += count.first;
  }
  std::printf("%d of %d caught\n", caught, kMutations);
  // A proof that accepted nearly everything would find little to object to in the runs either.
  EXPECT_GT(caught, kMutations * 3 / 4);
}

// The other way round: what the executor breaks in every schedule, the proof must reject; here the
// faults are those that only one delivery, or only one kind of buffer, can show.
TEST(MutationTest, ProofSeesWhatOnlyRendezvousShows) {
  const Topology topology = Topology::grid(2, 1);
  std::vector<Schedule> schedules;
  for (std::uint32_t rank = 0; rank < 2; ++rank) {
    // Both send before they receive, one after the other.
    Builder::Shape shape;
    shape.op = OpKind::kBarrier;
    shape.rank = rank;
    shape.ranks = 2;
    shape.algorithm = "head_on";
    Builder b(shape);
    b.in_order();
    b.signal(1 - rank);
    b.wait_signal(1 - rank);
    schedules.push_back(b.build().value());
  }
  EXPECT_TRUE(verify(schedules, topology, Delivery::kEager).ok());
  EXPECT_FALSE(verify(schedules, topology, Delivery::kRendezvous).ok());
}

}  // namespace
}  // namespace isthmus
