// Goal: ranks as threads of one process work, so that the thread sanitizer sees the whole engine;
// several threads may share a rank and a group; callbacks may wait for work of their own. Method:
// worlds over a MemoryStore, one thread a rank.

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <functional>
#include <future>
#include <latch>
#include <memory>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "collectives/world.h"
#include "transport/memory_store.h"

namespace isthmus {
namespace {

using Body = std::function<void(World& world)>;
using OwnerBody = std::function<void(std::unique_ptr<World> world)>;

// Runs `body` on each rank; `nodes` is one letter a rank, and so are `racks` where there are some.
void own_ranks(const std::string& nodes, const OwnerBody& body, const std::string& racks = "") {
  MemoryStore store;
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < nodes.size(); ++rank) {
    threads.emplace_back([&, rank] {
      WorldOptions options;
      options.rank = static_cast<int>(rank);
      options.size = static_cast<int>(nodes.size());
      options.timeout_ms = 60'000;
      options.node_id = std::string(1, nodes[rank]);
      options.rack_id = racks.substr(std::min(rank, racks.size()), 1);
      Result<std::unique_ptr<World>> world = World::create(options, store);
      ASSERT_TRUE(world.ok()) << world.error().message;
      body(std::move(world).value());
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
}

void on_ranks(const std::string& nodes, const Body& body, const std::string& racks = "") {
  own_ranks(nodes, [&body](std::unique_ptr<World> world) { body(*world); }, racks);
}

Call sum_of(std::vector<float>* data) {
  return {OpKind::kAllReduce, DType::kFloat32, RedOp::kSum, 0,
          data->data(),       data->data(),    data->size()};
}

class Threads : public ::testing::TestWithParam<std::string> {};

TEST_P(Threads, AllReduceOfManySizes) {
  on_ranks(GetParam(), [](World& world) {
    for (const std::size_t count : {1U, 12U, 100U, 3000U, 50'000U}) {
      std::vector<float> data(count, static_cast<float>(world.rank() + 1));
      const Status status = world.communicator().run(sum_of(&data));
      ASSERT_TRUE(status.ok()) << status.error().message;
      const auto ranks = static_cast<float>(world.size());
      EXPECT_EQ(data.front(), ranks * (ranks + 1) / 2);
      EXPECT_EQ(data.back(), data.front());
    }
  });
}

TEST_P(Threads, AsynchronousOperationsAndTheirCallbacks) {
  on_ranks(GetParam(), [](World& world) {
    constexpr int kWorks = 12;
    std::vector<std::vector<float>> data(kWorks, std::vector<float>(500, 1.0F));
    std::vector<WorkRef> works;
    std::atomic<int> called{0};
    for (int k = 0; k < kWorks; ++k) {
      Result<WorkRef> work = world.communicator().start(sum_of(&data[static_cast<std::size_t>(k)]));
      ASSERT_TRUE(work.ok()) << work.error().message;
      works.push_back(*work);
    }
    for (const WorkRef& work : works) {
      const Status status = work->wait(Deadline::after_ms(60'000));
      ASSERT_TRUE(status.ok()) << status.error().message;
      work->on_done([&called] { called.fetch_add(1); });
    }
    while (called.load() != kWorks) {
      std::this_thread::yield();
    }
    for (const std::vector<float>& one : data) {
      EXPECT_EQ(one.front(), static_cast<float>(world.size()));
    }
  });
}

TEST_P(Threads, ACallbackMayWaitForItsOwnOperation) {
  on_ranks(GetParam(), [](World& world) {
    std::vector<float> outer(100, 1.0F);
    std::vector<float> inner(100, 2.0F);
    std::atomic<bool> over{false};
    Result<WorkRef> work = world.communicator().start(sum_of(&outer));
    ASSERT_TRUE(work.ok()) << work.error().message;
    (*work)->on_done([&] {
      Result<WorkRef> nested = world.communicator().start(sum_of(&inner));
      ASSERT_TRUE(nested.ok()) << nested.error().message;
      const Status status = (*nested)->wait(Deadline::after_ms(60'000));
      EXPECT_TRUE(status.ok());
      over.store(true);
    });
    while (!over.load()) {
      std::this_thread::yield();
    }
    EXPECT_EQ(inner.front(), 2.0F * static_cast<float>(world.size()));
  });
}

// The second work is done when its callback is asked for, and the first one's callback still runs.
TEST_P(Threads, CallbacksThatAreAskedForLateKeepTheOrder) {
  std::latch attached(static_cast<std::ptrdiff_t>(GetParam().size()) - 1);
  on_ranks(GetParam(), [&](World& world) {
    std::vector<float> data(100, 1.0F);
    std::vector<float> more(100, 1.0F);
    if (world.rank() == 0) {
      attached.wait();
      EXPECT_TRUE(world.communicator().run(sum_of(&data)).ok());
      EXPECT_TRUE(world.communicator().run(sum_of(&more)).ok());
      return;
    }
    std::latch go_on(1);
    std::latch over(1);
    std::vector<int> seen;
    Result<WorkRef> first = world.communicator().start(sum_of(&data));
    ASSERT_TRUE(first.ok()) << first.error().message;
    (*first)->on_done([&] {
      go_on.wait();
      seen.push_back(1);
    });
    attached.count_down();
    Result<WorkRef> second = world.communicator().start(sum_of(&more));
    ASSERT_TRUE(second.ok()) << second.error().message;
    EXPECT_TRUE((*second)->wait(Deadline::after_ms(60'000)).ok());
    (*second)->on_done([&] {
      seen.push_back(2);
      over.count_down();
    });
    go_on.count_down();
    over.wait();
    EXPECT_EQ(seen, std::vector<int>({1, 2}));
  });
}

// Rank 0's callback runs on a lane: the others come only when it is attached.
void end_in_a_callback(const std::string& nodes, bool destroy) {
  std::latch attached(1);
  own_ranks(nodes, [&](std::unique_ptr<World> world) {
    std::vector<float> data(100, 1.0F);
    std::promise<std::thread::id> ended;
    if (world->rank() != 0) {
      attached.wait();
    }
    const bool alone = world->size() == 1;
    const bool first = world->rank() == 0;
    Result<WorkRef> work = world->communicator().start(sum_of(&data));
    ASSERT_TRUE(work.ok()) << work.error().message;
    (*work)->on_done([&] {
      if (destroy) {
        world.reset();
      } else {
        world->shutdown("the test says so");
      }
      ended.set_value(std::this_thread::get_id());
    });
    if (first) {
      attached.count_down();
    }
    const std::thread::id by = ended.get_future().get();
    EXPECT_TRUE(!first || alone || by != std::this_thread::get_id());
    EXPECT_TRUE((*work)->outcome().ok());
  });
}

TEST_P(Threads, ACallbackMayDestroyItsWorld) {
  end_in_a_callback(GetParam(), true);
}

TEST_P(Threads, ACallbackMayShutItsWorldDown) {
  end_in_a_callback(GetParam(), false);
}

TEST_P(Threads, GroupsOfTheirOwnForEachThreadOfARank) {
  on_ranks(GetParam(), [](World& world) {
    std::vector<int> all(static_cast<std::size_t>(world.size()));
    for (std::size_t i = 0; i < all.size(); ++i) {
      all[i] = static_cast<int>(i);
    }
    std::vector<std::unique_ptr<Communicator>> groups;
    for (int k = 0; k < 3; ++k) {
      auto group = world.new_group(all, "thread" + std::to_string(k));
      ASSERT_TRUE(group.ok()) << group.error().message;
      groups.push_back(std::move(group).value());
    }
    std::vector<std::thread> threads;
    for (int k = 0; k < 3; ++k) {
      threads.emplace_back([&, k] {
        for (int i = 0; i < 30; ++i) {
          std::vector<float> data(static_cast<std::size_t>(1 + i * 40), static_cast<float>(k + 1));
          const Status status = groups[static_cast<std::size_t>(k)]->run(sum_of(&data));
          ASSERT_TRUE(status.ok()) << status.error().message;
          ASSERT_EQ(data.back(), static_cast<float>((k + 1) * world.size()));
        }
      });
    }
    for (std::thread& thread : threads) {
      thread.join();
    }
  });
}

TEST_P(Threads, AbortEndsTheGroupForEveryone) {
  on_ranks(GetParam(), [](World& world) {
    if (world.rank() == 0) {
      world.communicator().abort("the test says so");
      EXPECT_NE(world.communicator().failure(), nullptr);
      return;
    }
    const Status status = world.communicator().barrier();
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.error().culprit, 0);
    EXPECT_FALSE(world.communicator().barrier().ok());
  });
}

// The send is done when it is refused: the next message with that rank fails in its place, once.
TEST_P(Threads, ASendOfAnotherSizeIsToldToBothRanks) {
  on_ranks(GetParam(), [](World& world) {
    Communicator& group = world.communicator();
    std::array<char, 16> bytes{};
    const Deadline limit = Deadline::after_ms(60'000);
    if (world.size() > 1 && world.rank() == 1) {
      Result<WorkRef> wrong = group.start_recv(bytes.data(), 16, 0, 3);
      ASSERT_TRUE(wrong.ok());
      const Status refused = (*wrong)->wait(limit);
      ASSERT_FALSE(refused.ok());
      EXPECT_EQ(refused.error().code, Code::kMismatch);
      EXPECT_TRUE((*group.start_send(bytes.data(), 4, 0, 4))->wait(limit).ok());
      EXPECT_TRUE((*group.start_recv(bytes.data(), 16, 0, 3))->wait(limit).ok());
      EXPECT_EQ(bytes[0], 'x');
    }
    if (world.size() > 1 && world.rank() == 0) {
      EXPECT_TRUE((*group.start_send(bytes.data(), 8, 1, 3))->wait(limit).ok());
      Result<WorkRef> next = group.start_recv(bytes.data(), 4, 1, 4);
      if (next.ok()) {  // The refusal comes before the message it waits for.
        EXPECT_TRUE((*next)->wait(limit).ok());
        next = group.start_send(bytes.data(), 16, 1, 3);
      } else {
        EXPECT_TRUE((*group.start_recv(bytes.data(), 4, 1, 4))->wait(limit).ok());
      }
      ASSERT_FALSE(next.ok());
      EXPECT_EQ(next.error().code, Code::kMismatch);
      EXPECT_NE(next.error().message.find("send to rank 1 with tag 3"), std::string::npos);
      EXPECT_NE(next.error().message.find("16 bytes"), std::string::npos);
      bytes[0] = 'x';
      EXPECT_TRUE((*group.start_send(bytes.data(), 16, 1, 3))->wait(limit).ok());
    }
    EXPECT_TRUE(group.barrier().ok());
  });
}

// An operation of messages says nothing of how far the ranks of the node are: what this rank has
// staged for them must stay until they have read it. The root is there first, so that the others do
// all their part at once, often before it looks again.
TEST_P(Threads, WhatIsStagedOutlivesLaterOperations) {
  constexpr int kRounds = 300;
  std::atomic<int> root_has_started{0};
  on_ranks(GetParam(), [&](World& world) {
    Communicator& group = world.communicator();
    const auto ranks = static_cast<std::size_t>(world.size());
    const auto own = static_cast<std::size_t>(world.rank());
    const auto root = static_cast<std::uint32_t>(ranks / 2);
    const auto let_others_start = [&](int round) {
      if (own == root) {
        root_has_started.store(round);
        root_has_started.notify_all();
      }
    };
    const std::shared_ptr<void> at_the_end(nullptr, [&](void*) { let_others_start(kRounds); });
    constexpr std::size_t kCount = 300;
    const std::vector<std::int32_t> wanted(kCount,
                                           own == root ? static_cast<std::int32_t>(ranks) : 1);
    for (int round = 0; round < kRounds; ++round) {
      std::vector<std::int32_t> sum(kCount, 1);
      std::vector<std::int32_t> most(kCount, 1000);
      std::vector<std::int32_t> all(kCount * ranks, 7);
      const Call calls[] = {
          {OpKind::kReduce, DType::kInt32, RedOp::kSum, root, sum.data(), sum.data(), kCount},
          {OpKind::kGather, DType::kInt32, RedOp::kSum, root, &all[own * kCount], all.data(),
           kCount},
          {OpKind::kReduce, DType::kInt32, RedOp::kMax, root, most.data(), most.data(), kCount},
      };
      if (own != root) {
        root_has_started.wait(round);
      }
      std::vector<WorkRef> works;
      for (const Call& call : calls) {
        Result<WorkRef> work = group.start(call);
        ASSERT_TRUE(work.ok()) << work.error().message;
        works.push_back(*work);
      }
      let_others_start(round + 1);
      for (const WorkRef& work : works) {
        const Status status = work->wait(Deadline::after_ms(60'000));
        ASSERT_TRUE(status.ok()) << status.error().message;
      }
      ASSERT_EQ(sum, wanted) << "round " << round;
    }
  });
}

// More data than the staging slots hold: a root would wait for readers, a reader for a root.
TEST_P(Threads, RanksThatDisagreeOnTheRootOfMuchDataAreTold) {
  const std::string& nodes = GetParam();
  if (nodes.size() < 2 || nodes.find_first_not_of('a') != std::string::npos) {
    return;  // of one node: there every rank sees every other's announcement
  }
  on_ranks(nodes, [](World& world) {
    Communicator& group = world.communicator();
    constexpr std::size_t kCount = 1U << 20;
    const int next = (world.rank() + 1) % world.size();
    std::vector<float> data(kCount);
    std::vector<float> all(kCount * static_cast<std::size_t>(world.size()));
    const CallOptions soon = {.timeout_ms = 20'000};
    const Status everyone =
        group.broadcast(data.data(), kCount, DType::kFloat32, world.rank(), soon);
    ASSERT_FALSE(everyone.ok());
    EXPECT_EQ(everyone.error().code, Code::kMismatch) << everyone.error().message;
    const Status nobody =
        group.gather(data.data(), all.data(), kCount, DType::kFloat32, next, soon);
    ASSERT_FALSE(nobody.ok());
    EXPECT_EQ(nobody.error().code, Code::kMismatch) << nobody.error().message;
    const Status scattered =
        group.scatter(all.data(), data.data(), kCount, DType::kFloat32, world.rank(), soon);
    ASSERT_FALSE(scattered.ok());
    EXPECT_EQ(scattered.error().code, Code::kMismatch) << scattered.error().message;
    EXPECT_TRUE(group.barrier().ok());
  });
}

// Both move as much, and the one of lower priority is issued first.
TEST(Priorities, TheUrgentOperationEndsFirst) {
  on_ranks("ab", [](World& world) {
    constexpr std::size_t kCount = std::size_t{64} << 20;
    Result<std::unique_ptr<Communicator>> group = world.new_group(std::array{0, 1}, "background");
    ASSERT_TRUE(group.ok()) << group.error().message;
    const std::vector<std::byte> mine(kCount, static_cast<std::byte>(world.rank() + 1));
    std::array<std::vector<std::byte>, 2> all;
    const auto gather = [&](Communicator& in, std::size_t which, Priority priority) {
      all[which].resize(2 * kCount);
      Result<WorkRef> work = in.start({.op = OpKind::kAllGather,
                                       .input = mine.data(),
                                       .output = all[which].data(),
                                       .count = kCount},
                                      {.priority = priority});
      EXPECT_TRUE(work.ok());
      return std::move(work).value();
    };
    all[1].resize(2 * kCount);
    const WorkRef background = gather(**group, 0, Priority::kBackground);
    const WorkRef urgent = gather(world.communicator(), 1, Priority::kUrgent);
    EXPECT_TRUE(urgent->wait(Deadline::after_ms(60'000)).ok());
    EXPECT_FALSE(background->done());
    EXPECT_TRUE(background->wait(Deadline::after_ms(60'000)).ok());
    for (const std::vector<std::byte>& each : all) {
      EXPECT_EQ(each.front(), std::byte{1});
      EXPECT_EQ(each.back(), std::byte{2});
    }
  });
}

TEST_P(Threads, BadCallsAreRefusedBeforeAnythingMoves) {
  on_ranks(GetParam(), [](World& world) {
    Communicator& group = world.communicator();
    float value = 1.0F;
    const Status null = group.all_reduce(nullptr, &value, 1, DType::kFloat32, RedOp::kSum);
    ASSERT_FALSE(null.ok());
    EXPECT_EQ(null.error().code, Code::kInvalidArgument);
    const Status root = group.broadcast(&value, 1, DType::kFloat32, 99);
    ASSERT_FALSE(root.ok());
    EXPECT_NE(root.error().message.find("root 99"), std::string::npos);
    const Result<WorkRef> tag =
        group.start_send(&value, 4, world.size() - 1 - world.rank(), kTagMax + 1);
    ASSERT_FALSE(tag.ok());
    EXPECT_EQ(tag.error().code, Code::kInvalidArgument);
    const Status kernel = group.all_reduce(&value, &value, 1, DType::kByte, RedOp::kSum);
    ASSERT_FALSE(kernel.ok());
    EXPECT_TRUE(group.all_reduce(&value, &value, 1, DType::kFloat32, RedOp::kSum).ok());
    EXPECT_EQ(value, static_cast<float>(world.size()));
  });
}

INSTANTIATE_TEST_SUITE_P(Layouts, Threads, ::testing::Values("a", "aa", "aaa", "ab", "aabb"),
                         [](const auto& tested) { return tested.param; });

// Whole blocks of small integers: exact in every order.
void expect_right(World& world, std::size_t count) {
  Communicator& group = world.communicator();
  const auto ranks = static_cast<std::size_t>(world.size());
  const auto own = static_cast<std::size_t>(world.rank());
  const auto value = [](std::size_t rank, std::size_t i) {
    return static_cast<float>((rank * 3 + i) % 11);
  };
  std::vector<float> all(count * ranks);
  for (std::size_t i = 0; i < all.size(); ++i) {
    all[i] = value(own, i);
  }
  std::vector<float> sums(all.size());
  std::vector<float> part(count);
  std::vector<float> gathered(all.size());
  std::vector<float> told(count, own == 5 ? 7.0F : 0.0F);
  ASSERT_TRUE(
      group.all_reduce(all.data(), sums.data(), all.size(), DType::kFloat32, RedOp::kSum).ok());
  ASSERT_TRUE(
      group.reduce_scatter(all.data(), part.data(), count, DType::kFloat32, RedOp::kSum).ok());
  ASSERT_TRUE(group.all_gather(part.data(), gathered.data(), count, DType::kFloat32).ok());
  ASSERT_TRUE(group.broadcast(told.data(), count, DType::kFloat32, 5).ok());
  for (std::size_t i = 0; i < all.size(); ++i) {
    float sum = 0.0F;
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      sum += value(rank, i);
    }
    ASSERT_EQ(sums[i], sum) << i;
    ASSERT_EQ(gathered[i], sum) << i;
  }
  EXPECT_EQ(std::count(told.begin(), told.end(), 7.0F), static_cast<std::ptrdiff_t>(count));
}

TEST(Racks, OperationsAreRight) {
  for (const auto& [nodes, racks] :
       {std::pair{"aabbccdd", "xxxxyyyy"}, std::pair{"abcaabdd", "xyyxxyyy"},
        std::pair{"aabcdefg", "xxyyzzzz"}}) {
    on_ranks(
        nodes,
        [](World& world) {
          for (const std::size_t count : {1U, 100U, 3000U, 100'000U}) {
            expect_right(world, count);
          }
        },
        racks);
  }
}

TEST(Racks, RanksOfANodeNameOne) {
  MemoryStore store;
  std::vector<std::thread> threads;
  for (const int rank : {0, 1}) {
    threads.emplace_back([&store, rank] {
      WorldOptions options;
      options.rank = rank;
      options.size = 2;
      options.rack_id = std::to_string(rank);
      const Result<std::unique_ptr<World>> world = World::create(options, store);
      ASSERT_FALSE(world.ok());
      EXPECT_EQ(world.error().code, Code::kMismatch);
      EXPECT_NE(world.error().message.find("ISTHMUS_RACK_ID is '1' and '0'"), std::string::npos)
          << world.error().message;
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
}

}  // namespace
}  // namespace isthmus
