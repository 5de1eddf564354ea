// Goal: verify() accepts right schedules and names what is wrong with each kind of fault. Method:
// hand-made all-reduces of two ranks, over messages and over mapped memory, with one planted fault
// each; every expected phrase is looked for in the message.

#include "schedule/verify.h"

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "schedule/builder.h"

namespace isthmus {
namespace {

using Emit = std::function<void(Builder&)>;

Builder start(OpKind op, std::uint32_t rank, std::uint32_t ranks, bool mapped,
              const Partition& partition) {
  Builder::Shape shape;
  shape.op = op;
  shape.rank = rank;
  shape.ranks = ranks;
  shape.local = mapped ? rank : 0;
  shape.locals = mapped ? ranks : 1;
  shape.algorithm = "by_hand";
  shape.partition = partition;
  return Builder(shape);
}

std::vector<Schedule> build(OpKind op, std::uint32_t ranks, bool mapped, const Partition& partition,
                            const Emit& emit) {
  std::vector<Schedule> result;
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    Builder b = start(op, rank, ranks, mapped, partition);
    emit(b);
    result.push_back(b.build().value());
  }
  return result;
}

// Empty when both deliveries are fine.
std::string complaint(const std::vector<Schedule>& schedules, const Topology& topology) {
  for (const Delivery delivery : {Delivery::kEager, Delivery::kRendezvous}) {
    const Status status = verify(schedules, topology, delivery);
    if (!status.ok()) {
      return status.error().message;
    }
  }
  return "";
}

void expect(const std::vector<Schedule>& schedules, const Topology& topology,
            const std::string& phrase) {
  const std::string text = complaint(schedules, topology);
  if (phrase.empty()) {
    EXPECT_EQ(text, "");
  } else {
    EXPECT_NE(text.find(phrase), std::string::npos) << "got: " << text;
  }
}

// Two ranks exchange and reduce, the lower rank's operand first.
void exchange(Builder& b) {
  const std::uint32_t peer = 1 - b.rank();
  b.copy(Builder::scratch(0), Builder::input(0), 0, 1);
  b.send(peer, Builder::scratch(0), 0, 1);
  b.recv(peer, Builder::scratch(1), 0, 1);
  if (b.rank() == 0) {
    b.reduce(Builder::scratch(0), Builder::scratch(1), 0, 1, true);
    b.copy(Builder::output(0), Builder::scratch(0), 0, 1);
  } else {
    b.reduce(Builder::scratch(1), Builder::scratch(0), 0, 1, true);
    b.copy(Builder::output(0), Builder::scratch(1), 0, 1);
  }
}

class VerifyMessagesTest : public testing::Test {
 protected:
  std::vector<Schedule> right() { return build(OpKind::kAllReduce, 2, false, {}, exchange); }

  void check(const Emit& emit, const std::string& phrase, const Partition& partition = {}) {
    expect(build(OpKind::kAllReduce, 2, false, partition, emit), topology_, phrase);
  }

  const Topology topology_ = Topology::grid(2, 1);
};

TEST_F(VerifyMessagesTest, AcceptsAnExchange) {
  expect(right(), topology_, "");
}

TEST_F(VerifyMessagesTest, MessagesPairUp) {
  check(
      [](Builder& b) {
        exchange(b);
        if (b.rank() == 0) {
          b.signal(1);
        }
      },
      "nobody receives this message");
  check(
      [](Builder& b) {
        exchange(b);
        if (b.rank() == 0) {
          b.wait_signal(1);
        }
      },
      "nobody sends this message");
  std::vector<Schedule> twice = right();
  twice[0].steps.push_back(twice[0].steps[1]);
  twice[0].in_order = true;
  EXPECT_NE(complaint(twice, topology_), "");
}

TEST_F(VerifyMessagesTest, LengthsAgree) {
  const auto crossed = [](Builder& b) {
    const std::uint32_t mark = b.rank();
    b.send(1 - b.rank(), Builder::input(mark), mark, mark + 1);
    b.recv(1 - b.rank(), Builder::scratch(0), mark, mark + 1);
  };
  check(crossed, "another length", {false, 2, 0});
}

TEST_F(VerifyMessagesTest, ScheduleMayDeadlockInRendezvousOnly) {
  check(
      [](Builder& b) {
        b.in_order();
        exchange(b);
      },
      "in rendezvous delivery");
}

TEST_F(VerifyMessagesTest, DroppedDependencyIsARace) {
  std::vector<Schedule> schedules = right();
  Schedule& schedule = schedules[0];
  // The reduction no longer waits for the message.
  ASSERT_EQ(schedule.steps[2].kind, StepKind::kRecv);
  const std::uint32_t at = schedule.release_begin[2];
  const std::uint32_t target = schedule.releases[at];
  schedule.releases.erase(schedule.releases.begin() + at);
  for (std::size_t i = 3; i < schedule.release_begin.size(); ++i) {
    --schedule.release_begin[i];
  }
  --schedule.wait_count[target];
  expect(schedules, topology_, "a race");
}

TEST_F(VerifyMessagesTest, InPlaceOnlyFaultIsSeen) {
  // Right with two buffers; in place the message lands on the operand before it is reduced.
  const auto emit = [](Builder& b) {
    const std::uint32_t peer = 1 - b.rank();
    b.send(peer, Builder::input(0), 0, 1);
    b.recv(peer, Builder::output(0), 0, 1);
    b.reduce(Builder::output(0), Builder::input(0), 0, 1, true);
  };
  const std::string text = complaint(build(OpKind::kAllReduce, 2, false, {}, emit), topology_);
  EXPECT_NE(text.find("in place"), std::string::npos) << text;
}

TEST_F(VerifyMessagesTest, AllRanksEvaluateOneTree) {
  const auto emit = [](Builder& b) {
    const std::uint32_t peer = 1 - b.rank();
    b.send(peer, Builder::input(0), 0, 1);
    b.recv(peer, Builder::scratch(0), 0, 1);
    b.reduce(Builder::scratch(0), Builder::input(0), 0, 1, true);  // own operand second on both
    b.copy(Builder::output(0), Builder::scratch(0), 0, 1);
  };
  check(emit, "another tree");
}

TEST_F(VerifyMessagesTest, ContributionsCountOnce) {
  check(
      [](Builder& b) {
        exchange(b);
        b.reduce(Builder::output(0), Builder::input(0), 0, 1, true);
      },
      "contribution once");
}

TEST_F(VerifyMessagesTest, FinishIsOnceAndLast) {
  std::vector<Schedule> never = right();
  for (Schedule& schedule : never) {
    schedule.steps[3].finish = false;
  }
  expect(never, topology_, "finished last");
}

TEST_F(VerifyMessagesTest, OutputWaitsForEveryStart) {
  const Topology three = Topology::grid(3, 1);
  // Rank 1 writes its output when it has heard of rank 0 only.
  const std::vector<Schedule> schedules =
      build(OpKind::kAllGather, 3, false, {true, 3, 0}, [](Builder& b) {
        for (std::uint32_t step = 1; step < 3; ++step) {
          const std::uint32_t from = (b.rank() + 3 - step) % 3;
          b.send((b.rank() + step) % 3, Builder::input(0), b.rank(), b.rank() + 1);
          b.recv(from, Builder::output(from), from, from + 1);
        }
        b.copy(Builder::output(b.rank()), Builder::input(0), b.rank(), b.rank() + 1);
      });
  expect(schedules, three, "is known to have started");
}

TEST_F(VerifyMessagesTest, BarrierKnowsEveryone) {
  const std::vector<Schedule> schedules = build(OpKind::kBarrier, 3, false, {}, [](Builder& b) {
    b.signal((b.rank() + 1) % 3);
    b.wait_signal((b.rank() + 2) % 3);
  });
  expect(schedules, Topology::grid(3, 1), "the barrier ends before rank");
}

TEST_F(VerifyMessagesTest, SpacesAreRespected) {
  std::vector<Schedule> writes_input = right();
  writes_input[0].steps[4].dst = Builder::input(0);
  expect(writes_input, topology_, "it writes the input");
  std::vector<Schedule> outside = right();
  outside[1].steps[2].dst.at = 7;
  expect(outside, topology_, "scratch has only 2 units");
  std::vector<Schedule> wrong_rank = right();
  std::swap(wrong_rank[0], wrong_rank[1]);
  expect(wrong_rank, topology_, "it stands for rank 0");
  std::vector<Schedule> other_root = right();
  other_root[1].partition.blocks = 2;
  expect(other_root, topology_, "another operation, partition or root");
  std::vector<Schedule> mapped = right();
  mapped[0].steps[0].src = {Space::kSlot, 0, 0};
  expect(mapped, Topology::grid(1, 2), "uses mapped memory");
}

class VerifyMappedTest : public testing::Test {
 protected:
  void check(const Emit& emit, const std::string& phrase, const Partition& partition = {}) {
    expect(build(OpKind::kAllReduce, 2, true, partition, emit), topology_, phrase);
  }

  const Topology topology_ = Topology::grid(1, 2);
};

void shown(Builder& b) {
  b.in_order();
  b.copy(b.slot(0), Builder::input(0), 0, 1);
  b.publish(0, 1);
  b.await_all(0, 1);
  b.reduce_locals(Builder::output(0), b.slot(0), 0, 1, true, true);
}

TEST_F(VerifyMappedTest, AcceptsTheSlot) {
  check(shown, "");
}

TEST_F(VerifyMappedTest, ReadsNeedAnAwait) {
  check(
      [](Builder& b) {
        b.in_order();
        b.copy(b.slot(0), Builder::input(0), 0, 1);
        b.publish(0, 1);
        b.reduce_locals(Builder::scratch(0), b.slot(0), 0, 1, true, true);
        b.await_all(0, 1);
        b.copy(Builder::output(0), Builder::scratch(0), 0, 1);
      },
      "a race");
}

TEST_F(VerifyMappedTest, PublishCoversOnlyWhatCameBefore) {
  check(
      [](Builder& b) {
        b.in_order();
        b.publish(0, 1);
        b.copy(b.slot(0), Builder::input(0), 0, 1);
        b.await_all(0, 1);
        b.reduce_locals(Builder::output(0), b.slot(0), 0, 1, true, true);
      },
      "a race");
}

// Two pieces through one staging unit.
void staged(Builder& b, bool waits_for_readers) {
  b.in_order();
  for (std::uint32_t piece = 0; piece < 2; ++piece) {
    if (piece == 1 && waits_for_readers) {
      b.await_all(2, 1);
    }
    b.copy(b.stage(0), Builder::input(piece), piece, piece + 1);
    b.publish(piece == 0 ? 0 : 1, piece + 1);
    b.await_all(piece == 0 ? 0 : 1, piece + 1);
    b.reduce_locals(Builder::output(piece), b.stage(0), piece, piece + 1, true, true);
    b.publish(2, piece + 1);
  }
}

TEST_F(VerifyMappedTest, StagingWaitsForItsReaders) {
  check([](Builder& b) { staged(b, true); }, "", {false, 2, 0});
  check([](Builder& b) { staged(b, false); }, "a race", {false, 2, 0});
}

TEST_F(VerifyMappedTest, LinesGrowAndAreAwaitedWithinReach) {
  check(
      [](Builder& b) {
        shown(b);
        b.await_all(1, 5);
      },
      "never publishes this");
  check(
      [](Builder& b) {
        shown(b);
        b.publish(1, 2);
        b.publish(1, 2);
      },
      "values must grow");
  check(
      [](Builder& b) {
        b.in_order();
        b.await_all(0, 1);
        b.publish(0, 1);
      },
      "a deadlock");
}

// Everyone reduces one slice, into everyone's output, between two meetings.
void exposed(Builder& b, bool meets_before, bool meets_after) {
  b.in_order();
  b.expose(Exposure::kMapped);
  b.publish(0, 1);
  if (meets_before) {
    b.await_all(0, 1);
  }
  const std::uint32_t own = b.local();
  b.reduce_locals(Builder::every_output(own), Builder::peer_input(0, own), own, own + 1, true,
                  true);
  b.publish(1, 1);
  if (meets_after) {
    b.await_all(1, 1);
  }
}

TEST_F(VerifyMappedTest, ExposedBuffersAreUsedWhileTheirOperationRuns) {
  check([](Builder& b) { exposed(b, true, true); }, "", {false, 2, 0});
  check([](Builder& b) { exposed(b, false, true); }, "before that rank is known to have started",
        {false, 2, 0});
  check([](Builder& b) { exposed(b, true, false); }, "may return while its buffer is still in use",
        {false, 2, 0});
}

TEST_F(VerifyMappedTest, ExposedBuffersAreReadByCopiesOnlyWherePulled) {
  check(
      [](Builder& b) {
        exposed(b, true, true);
        b.expose(Exposure::kPulled);
      },
      "can only be copied", {false, 2, 0});
  check(
      [](Builder& b) {
        exposed(b, true, true);
        b.expose(Exposure::kNone);
      },
      "does not expose buffers", {false, 2, 0});
}

TEST_F(VerifyMappedTest, ExposedResultsAreReadWhenTheyAreThere) {
  const auto reads = [](bool waits) {
    return [waits](Builder& b) {
      b.in_order();
      b.expose(Exposure::kPulled);
      b.publish(0, 1);
      b.await_all(0, 1);
      const std::uint32_t own = b.local();
      const std::uint32_t peer = 1 - own;
      b.copy(Builder::scratch(peer), Builder::peer_input(peer, own), own, own + 1);
      b.reduce_units(Builder::output(own), Builder::scratch(0), 2, own, own, own + 1, true);
      b.publish(2, 1);
      if (waits) {
        b.await_all(2, 1);
      }
      b.copy(Builder::output(peer), Builder::peer_output(peer, peer), peer, peer + 1);
      b.publish(1, 1);
      b.await_all(1, 1);
    };
  };
  check(reads(true), "", {false, 2, 0});
  check(reads(false), "a race", {false, 2, 0});
}

TEST_F(VerifyMappedTest, OnlyTheOwnerWrites) {
  check(
      [](Builder& b) {
        b.in_order();
        b.copy(Builder::of_local(b.slot(0), 1 - b.local()), Builder::input(0), 0, 1);
        b.publish(0, 1);
        b.await_all(0, 1);
      },
      "it writes another rank's memory");
}

TEST_F(VerifyMappedTest, SignaturesAreComparedOnLineZeroOnly) {
  check(
      [](Builder& b) {
        b.in_order();
        b.copy(b.slot(0), Builder::input(0), 0, 1);
        b.publish(1, 1);
        b.await_all(1, 1);
        b.reduce_locals(Builder::output(0), b.slot(0), 0, 1, true, true);
      },
      "is known to have started");
}

TEST_F(VerifyMappedTest, PairsReuseSlots) {
  const std::vector<Schedule> right = build(OpKind::kAllReduce, 2, true, {}, shown);
  EXPECT_TRUE(verify_pair(right, right, topology_, Delivery::kEager).ok());
  // A barrier over messages announces nothing: it orders no access to a slot.
  const std::vector<Schedule> silent = build(OpKind::kBarrier, 2, false, {}, [](Builder& b) {
    b.signal(1 - b.rank());
    b.wait_signal(1 - b.rank());
  });
  EXPECT_TRUE(verify(silent, topology_, Delivery::kEager).ok());
  const Status status = verify_pair(right, silent, topology_, Delivery::kEager);
  ASSERT_FALSE(status.ok());
  EXPECT_NE(status.error().message.find("a race"), std::string::npos) << status.error().message;
}

}  // namespace
}  // namespace isthmus
