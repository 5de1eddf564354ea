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

// The sum of large float16 numbers is infinite; their mean is not, on one level or on two.
TEST_P(Collectives, TheMeanOfLargeHalvesIsFinite) {
  expect_all([](World& world) {
    Communicator& group = world.communicator();
    constexpr std::uint16_t kLarge = 0x7800;  // 32768 in float16
    for (const std::size_t count : {std::size_t{4}, std::size_t{3000}, std::size_t{100'000}}) {
      std::vector<std::uint16_t> data(count, kLarge);
      REQUIRE_OK(group.all_reduce(data.data(), data.data(), count, DType::kFloat16, RedOp::kAvg));
      for (const std::uint16_t value : data) {
        // A third of it, three times, may be one unit short.
        REQUIRE_RANK(value == kLarge || (group.size() == 3 && value == kLarge - 1));
      }
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

TEST_P(Collectives, ReduceGatherAndScatterWithEveryRoot) {
  expect_all([](World& world) {
    Communicator& group = world.communicator();
    const auto ranks = static_cast<std::size_t>(group.size());
    for (const std::size_t count : kCounts) {
      for (int root = 0; root < group.size(); ++root) {
        const bool is_root = world.rank() == root;
        const std::vector<float> mine = values(world.rank(), count);
        const std::vector<float> full = values(world.rank(), count * ranks);
        // A rank without an output may pass none.
        std::vector<float> sum(is_root ? count : 0, -1.0F);
        std::vector<float> all(is_root ? count * ranks : 0, -1.0F);
        std::vector<float> part(count + 1, -1.0F);
        REQUIRE_OK(group.reduce(mine.data(), is_root ? sum.data() : nullptr, count, DType::kFloat32,
                                RedOp::kSum, root));
        REQUIRE_OK(group.gather(mine.data(), is_root ? all.data() : nullptr, count, DType::kFloat32,
                                root));
        REQUIRE_OK(group.scatter(is_root ? full.data() : nullptr, part.data(), count,
                                 DType::kFloat32, root));
        for (std::size_t i = 0; i < sum.size(); ++i) {
          REQUIRE_RANK(sum[i] == sum_at(group.size(), i));
        }
        for (std::size_t owner = 0; is_root && owner < ranks; ++owner) {
          const std::vector<float> theirs = values(static_cast<int>(owner), count);
          REQUIRE_RANK(std::equal(theirs.begin(), theirs.end(),
                                  all.begin() + static_cast<std::ptrdiff_t>(owner * count)));
        }
        const std::vector<float> roots = values(root, count * ranks);
        const auto first = static_cast<std::size_t>(world.rank()) * count;
        REQUIRE_RANK(std::equal(part.begin(), part.end() - 1,
                                roots.begin() + static_cast<std::ptrdiff_t>(first)));
        REQUIRE_RANK(part[count] == -1.0F);
        if (count > 100'000) {
          break;
        }
      }
    }
    return 0;
  });
}

// What rank `from` has for rank `to`.
float exchanged(std::size_t from, std::size_t to, std::size_t i) {
  return static_cast<float>(from * 1000 + to * 100 + i % 97);
}

TEST_P(Collectives, AllToAll) {
  expect_all([](World& world) {
    Communicator& group = world.communicator();
    const auto ranks = static_cast<std::size_t>(group.size());
    const auto own = static_cast<std::size_t>(world.rank());
    for (const std::size_t count : kCounts) {
      std::vector<float> in(count * ranks);
      std::vector<float> out(count * ranks + 1, -1.0F);
      for (std::size_t i = 0; i < in.size(); ++i) {
        in[i] = exchanged(own, i / count, i % count);
      }
      REQUIRE_OK(group.all_to_all(in.data(), out.data(), count, DType::kFloat32));
      for (std::size_t i = 0; i < in.size(); ++i) {
        REQUIRE_RANK(out[i] == exchanged(i / count, own, i % count));
      }
      REQUIRE_RANK(out[count * ranks] == -1.0F);
    }
    std::vector<float> same(ranks);
    const Status refused = group.all_to_all(same.data(), same.data(), 1, DType::kFloat32);
    REQUIRE_RANK(!refused.ok() && refused.error().code == Code::kInvalidArgument);
    REQUIRE_OK(group.barrier());
    return 0;
  });
}

// Elements that rank `from` has for rank `to`: some of them none.
std::size_t length_between(std::size_t from, std::size_t to, std::size_t scale) {
  return (from * 5 + to * 3) % 4 * scale;
}

TEST_P(Collectives, AllToAllOfLengthsThatOnlyTwoRanksKnow) {
  expect_all([](World& world) {
    Communicator& group = world.communicator();
    const auto ranks = static_cast<std::size_t>(group.size());
    const auto own = static_cast<std::size_t>(world.rank());
    for (const std::size_t scale :
         {std::size_t{0}, std::size_t{1}, std::size_t{1000}, std::size_t{100'003}}) {
      std::vector<std::size_t> out_counts(ranks);
      std::vector<std::size_t> in_counts(ranks);
      std::vector<float> in;
      std::vector<float> wanted;
      for (std::size_t peer = 0; peer < ranks; ++peer) {
        in_counts[peer] = length_between(own, peer, scale);
        out_counts[peer] = length_between(peer, own, scale);
        for (std::size_t i = 0; i < in_counts[peer]; ++i) {
          in.push_back(exchanged(own, peer, i));
        }
        for (std::size_t i = 0; i < out_counts[peer]; ++i) {
          wanted.push_back(exchanged(peer, own, i));
        }
      }
      std::vector<float> out(wanted.size(), -1.0F);
      REQUIRE_OK(group.run({.op = OpKind::kAllToAll,
                            .dtype = DType::kFloat32,
                            .input = in.data(),
                            .output = out.data(),
                            .counts = in_counts,
                            .output_counts = out_counts}));
      REQUIRE_RANK(out == wanted);
    }
    return 0;
  });
}

TEST_P(Collectives, AllGatherAndReduceScatterOfUnevenBlocks) {
  expect_all([](World& world) {
    Communicator& group = world.communicator();
    const auto ranks = static_cast<std::size_t>(group.size());
    const auto own = static_cast<std::size_t>(world.rank());
    for (const std::size_t scale : {std::size_t{1}, std::size_t{500}, std::size_t{70'001}}) {
      std::vector<std::size_t> counts(ranks);
      std::size_t whole = 0;
      std::size_t first = 0;
      for (std::size_t rank = 0; rank < ranks; ++rank) {
        counts[rank] = rank % 3 * scale + (rank == 1 ? 1 : 0);
        first += rank < own ? counts[rank] : 0;
        whole += counts[rank];
      }
      const std::vector<float> mine = values(world.rank(), counts[own]);
      std::vector<float> all(whole + 1, -1.0F);
      REQUIRE_OK(group.run({.op = OpKind::kAllGather,
                            .dtype = DType::kFloat32,
                            .input = mine.data(),
                            .output = all.data(),
                            .counts = counts}));
      std::size_t at = 0;
      for (std::size_t rank = 0; rank < ranks; ++rank) {
        for (const float value : values(static_cast<int>(rank), counts[rank])) {
          REQUIRE_RANK(all[at++] == value);
        }
      }
      REQUIRE_RANK(all[whole] == -1.0F);
      const std::vector<float> full = values(world.rank(), whole);
      std::vector<float> part(counts[own] + 1, -1.0F);
      REQUIRE_OK(group.run({.op = OpKind::kReduceScatter,
                            .dtype = DType::kFloat32,
                            .red_op = RedOp::kSum,
                            .input = full.data(),
                            .output = part.data(),
                            .counts = counts}));
      for (std::size_t i = 0; i < counts[own]; ++i) {
        REQUIRE_RANK(part[i] == sum_at(group.size(), first + i));
      }
      REQUIRE_RANK(part[counts[own]] == -1.0F);
    }
    return 0;
  });
}

// HYBRID_SHARD: all numbers of shards, those that fit the nodes and those that do not; the replicas
// of a shard have the same bits.
TEST_P(Collectives, ReduceShards) {
  expect_all([](World& world) {
    Communicator& group = world.communicator();
    const auto ranks = static_cast<std::uint32_t>(group.size());
    for (std::uint32_t shards = 1; shards <= ranks; ++shards) {
      for (const std::size_t count : kCounts) {
        const std::vector<float> full = values(world.rank(), count * shards);
        std::vector<float> part(count + 1, -1.0F);
        const Status status = group.reduce_shards(full.data(), part.data(), count, shards,
                                                  DType::kFloat32, RedOp::kSum);
        REQUIRE_RANK(status.ok() == (ranks % shards == 0));
        REQUIRE_RANK(part[count] == -1.0F);
        if (!status.ok()) {
          REQUIRE_RANK(status.error().message.find("shards") != std::string::npos);
          continue;
        }
        const std::size_t first = static_cast<std::uint32_t>(world.rank()) % shards * count;
        for (std::size_t i = 0; i < count; ++i) {
          REQUIRE_RANK(part[i] == sum_at(group.size(), first + i));
        }
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
