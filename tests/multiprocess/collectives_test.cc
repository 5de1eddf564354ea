// Goal: every collective gives the right result between real processes, on shared memory, over TCP,
// on even and uneven nodes, blocking and asynchronous, in groups and in subgroups. Method: forked
// ranks, small integers (exact in every order), all sizes around the algorithms' limits.

#include <algorithm>
#include <vector>

#include <gtest/gtest.h>

#include "tests/multiprocess/ranks.h"

namespace isthmus {
namespace {

using testing::Ranks;

struct Layout {
  const char* name;
  std::vector<std::string> nodes;  // of each rank
};

class Collectives : public ::testing::TestWithParam<Layout> {
 protected:
  // Runs `body` on every rank of the layout; 0 from all is success.
  static void expect_all(const Ranks::Body& body) {
    Ranks::Options options;
    options.size = static_cast<int>(GetParam().nodes.size());
    options.node_ids = GetParam().nodes;
    Ranks ranks(options, body);
    for (const int code : ranks.wait_all()) {
      EXPECT_EQ(code, 0);
    }
  }
};

constexpr std::size_t kCounts[] = {0, 1, 3, 12, 13, 100, 2048, 2049, 5000, 70'001, 600'000};

// Fails a rank with its line number, which the parent prints as the exit code's complaint.
#define REQUIRE_RANK(condition)                                                                   \
  do {                                                                                            \
    if (!(condition)) {                                                                           \
      std::fprintf(stderr, "rank %d: %s:%d: %s\n", world.rank(), __FILE__, __LINE__, #condition); \
      return 1;                                                                                   \
    }                                                                                             \
  } while (false)

#define REQUIRE_OK(expression)                                                       \
  do {                                                                               \
    const Status status_ = (expression);                                             \
    if (!status_.ok()) {                                                             \
      std::fprintf(stderr, "rank %d: %s:%d: %s\n", world.rank(), __FILE__, __LINE__, \
                   status_.error().message.c_str());                                 \
      return 1;                                                                      \
    }                                                                                \
  } while (false)

std::vector<float> values(int rank, std::size_t count) {
  std::vector<float> out(count);
  for (std::size_t i = 0; i < count; ++i) {
    out[i] = static_cast<float>((i * 7 + static_cast<std::size_t>(rank) * 3) % 11);
  }
  return out;
}

float sum_at(int ranks, std::size_t i) {
  float sum = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    sum += static_cast<float>((i * 7 + static_cast<std::size_t>(rank) * 3) % 11);
  }
  return sum;
}

TEST_P(Collectives, AllReduceSumsInPlaceAndOutOfPlace) {
  expect_all([](World& world) {
    Communicator& group = world.communicator();
    for (const std::size_t count : kCounts) {
      std::vector<float> in = values(world.rank(), count);
      std::vector<float> out(count + 1, -1.0F);
      REQUIRE_OK(group.all_reduce(in.data(), out.data(), count, DType::kFloat32, RedOp::kSum));
      REQUIRE_OK(group.all_reduce(in.data(), in.data(), count, DType::kFloat32, RedOp::kAvg));
      for (std::size_t i = 0; i < count; ++i) {
        const float sum = sum_at(group.size(), i);
        REQUIRE_RANK(out[i] == sum);
        REQUIRE_RANK(in[i] == sum / static_cast<float>(group.size()));
      }
      REQUIRE_RANK(out[count] == -1.0F);
    }
    return 0;
  });
}

TEST_P(Collectives, AllGatherAndReduceScatter) {
  expect_all([](World& world) {
    Communicator& group = world.communicator();
    const auto ranks = static_cast<std::size_t>(group.size());
    for (const std::size_t count : kCounts) {
      const std::vector<float> mine = values(world.rank(), count);
      std::vector<float> all(count * ranks + 1, -1.0F);
      REQUIRE_OK(group.all_gather(mine.data(), all.data(), count, DType::kFloat32));
      for (std::size_t owner = 0; owner < ranks; ++owner) {
        const std::vector<float> theirs = values(static_cast<int>(owner), count);
        REQUIRE_RANK(std::equal(theirs.begin(), theirs.end(),
                                all.begin() + static_cast<std::ptrdiff_t>(owner * count)));
      }
      REQUIRE_RANK(all[count * ranks] == -1.0F);
      const std::vector<float> full = values(world.rank(), count * ranks);
      std::vector<float> part(count + 1, -1.0F);
      REQUIRE_OK(
          group.reduce_scatter(full.data(), part.data(), count, DType::kFloat32, RedOp::kSum));
      for (std::size_t i = 0; i < count; ++i) {
        const std::size_t at = static_cast<std::size_t>(world.rank()) * count + i;
        REQUIRE_RANK(part[i] == sum_at(group.size(), at));
      }
      REQUIRE_RANK(part[count] == -1.0F);
    }
    return 0;
  });
}

TEST_P(Collectives, BroadcastFromEveryRootAndBarrier) {
  expect_all([](World& world) {
    Communicator& group = world.communicator();
    for (const std::size_t count : {std::size_t{1}, std::size_t{2000}, std::size_t{300'000}}) {
      for (int root = 0; root < group.size(); ++root) {
        std::vector<float> data = values(world.rank(), count);
        REQUIRE_OK(group.broadcast(data.data(), count, DType::kFloat32, root));
        REQUIRE_RANK(data == values(root, count));
        REQUIRE_OK(group.barrier());
      }
    }
    return 0;
  });
}

TEST_P(Collectives, ManyAsynchronousOperationsEndInAnyOrderOfWaits) {
  expect_all([](World& world) {
    Communicator& group = world.communicator();
    constexpr std::size_t kOperations = 40;  // more than may be active at once
    std::vector<std::vector<float>> data;
    std::vector<WorkRef> works;
    for (std::size_t k = 0; k < kOperations; ++k) {
      data.push_back(values(world.rank(), 100 + k * 997));
    }
    for (std::vector<float>& one : data) {
      Result<WorkRef> work = group.start({OpKind::kAllReduce, DType::kFloat32, RedOp::kSum, 0,
                                          one.data(), one.data(), one.size()});
      REQUIRE_RANK(work.ok());
      works.push_back(*work);
    }
    for (std::size_t k = kOperations; k-- > 0;) {
      REQUIRE_OK(works[k]->wait(Deadline::after_ms(20'000)));
      for (std::size_t i = 0; i < data[k].size(); ++i) {
        REQUIRE_RANK(data[k][i] == sum_at(group.size(), i));
      }
    }
    return 0;
  });
}

TEST_P(Collectives, SubgroupsMadeByTheirMembersOnly) {
  expect_all([](World& world) {
    for (int round = 0; round < 20; ++round) {
      std::vector<int> members;
      for (int rank = world.rank() % 2; rank < world.size(); rank += 2) {
        members.push_back(rank);
      }
      Result<std::unique_ptr<Communicator>> group = world.new_group(members, "parity");
      REQUIRE_RANK(group.ok());
      float sum = static_cast<float>(world.rank() + 1);
      float expected = 0;
      for (const int member : members) {
        expected += static_cast<float>(member + 1);
      }
      REQUIRE_OK((*group)->all_reduce(&sum, &sum, 1, DType::kFloat32, RedOp::kSum));
      REQUIRE_RANK(sum == expected);
    }
    return 0;
  });
}

TEST_P(Collectives, SendsMeetReceivesByTag) {
  expect_all([](World& world) {
    Communicator& group = world.communicator();
    const int next = (world.rank() + 1) % world.size();
    const int previous = (world.rank() + world.size() - 1) % world.size();
    for (const std::size_t bytes : {std::size_t{0}, std::size_t{9}, std::size_t{100'000}}) {
      std::vector<char> one(bytes, static_cast<char>(world.rank()));
      std::vector<char> two(bytes, static_cast<char>(world.rank() + 100));
      std::vector<char> got_one(bytes, -1);
      std::vector<char> got_two(bytes, -1);
      std::vector<Result<WorkRef>> works;
      works.push_back(group.start_send(one.data(), bytes, next, 1));
      works.push_back(group.start_send(two.data(), bytes, next, 2));
      works.push_back(group.start_recv(got_two.data(), bytes, previous, 2));
      works.push_back(group.start_recv(got_one.data(), bytes, previous, 1));
      for (Result<WorkRef>& work : works) {
        REQUIRE_RANK(work.ok());
        REQUIRE_OK((*work)->wait(Deadline::after_ms(20'000)));
      }
      REQUIRE_RANK(got_one == std::vector<char>(bytes, static_cast<char>(previous)));
      REQUIRE_RANK(got_two == std::vector<char>(bytes, static_cast<char>(previous + 100)));
    }
    return 0;
  });
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, Collectives,
    ::testing::Values(Layout{"Shm2", {"a", "a"}}, Layout{"Shm3", {"a", "a", "a"}},
                      Layout{"Shm4", {"a", "a", "a", "a"}}, Layout{"Tcp2", {"a", "b"}},
                      Layout{"Tcp3", {"a", "b", "c"}}, Layout{"Nodes2x2", {"a", "a", "b", "b"}},
                      Layout{"Uneven2and1", {"a", "a", "b"}},
                      Layout{"Interleaved", {"a", "b", "a", "b"}}),
    [](const auto& tested) { return std::string(tested.param.name); });

}  // namespace
}  // namespace isthmus
