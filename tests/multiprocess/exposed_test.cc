// Goal: operations on buffers that the ranks of a node read where they lie give the right result,
// whatever mix of memory the ranks' buffers are in, and leave nothing undone when a rank dies or
// the system forbids copies between processes. Method: forked ranks, small integers (exact in every
// order), memory of the world and of malloc, ISTHMUS_ALGO to force the copies between processes, a
// seccomp filter that answers EPERM.

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/temp_folder.h"
#include "tests/multiprocess/ranks.h"

namespace isthmus {
namespace {

using testing::Ranks;

constexpr std::size_t kCounts[] = {2049, 5000, 40'000, 70'001, 600'000};

float value_at(int rank, std::size_t i) {
  return static_cast<float>((i * 7 + static_cast<std::size_t>(rank) * 3) % 11);
}

float sum_at(int ranks, std::size_t i) {
  float sum = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    sum += value_at(rank, i);
  }
  return sum;
}

// A buffer of floats, of the world's memory or of this process's own.
class Buffer {
 public:
  Buffer(World& world, std::size_t count, bool mapped) {
    if (mapped) {
      region_ = world.allocate(count * sizeof(float)).value();
      data_ = reinterpret_cast<float*>(region_.data());
    } else {
      own_.resize(count);
      data_ = own_.data();
    }
    count_ = count;
  }

  bool mapped() const { return region_.mapped(); }

  float* data() { return data_; }

  void fill(int rank) {
    for (std::size_t i = 0; i < count_; ++i) {
      data_[i] = value_at(rank, i);
    }
  }

  float operator[](std::size_t i) const { return data_[i]; }

 private:
  MemoryRegion region_;
  std::vector<float> own_;
  float* data_ = nullptr;
  std::size_t count_ = 0;
};

// The four operations that have a form of this kind, checked at every element.
int check_operations(World& world, bool mapped) {
  Communicator& group = world.communicator();
  const auto ranks = static_cast<std::size_t>(world.size());
  const auto own = static_cast<std::size_t>(world.rank());
  for (const std::size_t count : kCounts) {
    Buffer whole(world, count * ranks, mapped);
    Buffer other(world, count * ranks, mapped);
    whole.fill(world.rank());
    REQUIRE_OK(group.all_reduce(whole.data(), other.data(), count, DType::kFloat32, RedOp::kSum));
    REQUIRE_OK(group.all_reduce(whole.data(), whole.data(), count, DType::kFloat32, RedOp::kAvg));
    for (std::size_t i = 0; i < count; ++i) {
      REQUIRE_RANK(other[i] == sum_at(world.size(), i));
      REQUIRE_RANK(whole[i] == sum_at(world.size(), i) / static_cast<float>(world.size()));
    }
    // Its operands are multiplied beforehand, in other memory.
    whole.fill(world.rank());
    REQUIRE_OK(group.run({.op = OpKind::kAllReduce,
                          .dtype = DType::kFloat32,
                          .red_op = RedOp::kPremulSum,
                          .input = whole.data(),
                          .output = whole.data(),
                          .count = count,
                          .factor = 2.0}));
    for (std::size_t i = 0; i < count; ++i) {
      REQUIRE_RANK(whole[i] == 2 * sum_at(world.size(), i));
    }
    whole.fill(world.rank());
    REQUIRE_OK(group.all_gather(whole.data(), other.data(), count, DType::kFloat32));
    for (std::size_t i = 0; i < count * ranks; ++i) {
      REQUIRE_RANK(other[i] == value_at(static_cast<int>(i / count), i % count));
    }
    REQUIRE_OK(
        group.reduce_scatter(whole.data(), other.data(), count, DType::kFloat32, RedOp::kSum));
    for (std::size_t i = 0; i < count; ++i) {
      REQUIRE_RANK(other[i] == sum_at(world.size(), own * count + i));
    }
    REQUIRE_OK(group.all_to_all(whole.data(), other.data(), count, DType::kFloat32));
    for (std::size_t i = 0; i < count * ranks; ++i) {
      REQUIRE_RANK(other[i] == value_at(static_cast<int>(i / count), own * count + i % count));
    }
    // In place, by blocks.
    REQUIRE_OK(group.all_gather(whole.data() + own * count, whole.data(), count, DType::kFloat32));
    for (std::size_t i = 0; i < count * ranks; ++i) {
      const std::size_t owner = i / count;
      REQUIRE_RANK(whole[i] == value_at(static_cast<int>(owner), owner * count + i % count));
    }
    whole.fill(world.rank());
    REQUIRE_OK(group.reduce_scatter(whole.data(), whole.data() + own * count, count,
                                    DType::kFloat32, RedOp::kSum));
    for (std::size_t i = 0; i < count; ++i) {
      REQUIRE_RANK(whole[own * count + i] == sum_at(world.size(), own * count + i));
    }
  }
  return 0;
}

// What goes to or comes from a root.
int check_rooted(World& world) {
  Communicator& group = world.communicator();
  const auto ranks = static_cast<std::size_t>(world.size());
  for (int root = 0; root < world.size(); ++root) {
    constexpr std::size_t kCount = 70'001;
    const std::size_t own = static_cast<std::size_t>(world.rank()) * kCount;
    Buffer whole(world, kCount * ranks, false);
    Buffer other(world, kCount * ranks, false);
    whole.fill(world.rank());
    REQUIRE_OK(group.broadcast(whole.data(), kCount, DType::kFloat32, root));
    for (std::size_t i = 0; i < kCount; ++i) {
      REQUIRE_RANK(whole[i] == value_at(root, i));
    }
    whole.fill(world.rank());
    REQUIRE_OK(group.gather(whole.data(), other.data(), kCount, DType::kFloat32, root));
    for (std::size_t i = 0; world.rank() == root && i < kCount * ranks; ++i) {
      REQUIRE_RANK(other[i] == value_at(static_cast<int>(i / kCount), i % kCount));
    }
    REQUIRE_OK(group.scatter(whole.data(), other.data(), kCount, DType::kFloat32, root));
    for (std::size_t i = 0; i < kCount; ++i) {
      REQUIRE_RANK(other[i] == value_at(root, own + i));
    }
  }
  return 0;
}

void expect_all(const Ranks::Options& options, const Ranks::Body& body) {
  Ranks ranks(options, body);
  for (const int code : ranks.wait_all()) {
    EXPECT_EQ(code, 0);
  }
}

class Exposed : public ::testing::TestWithParam<int> {
 protected:
  static Ranks::Options options() {
    Ranks::Options ranks;
    ranks.size = GetParam();
    return ranks;
  }
};

TEST_P(Exposed, MappedBuffersOnAllRanks) {
  expect_all(options(), [](World& world) {
    Buffer probe(world, 5000, true);
    REQUIRE_RANK(probe.mapped());
    const Call call{.op = OpKind::kAllReduce,
                    .dtype = DType::kFloat32,
                    .input = probe.data(),
                    .output = probe.data(),
                    .count = 5000};
    REQUIRE_RANK(world.communicator().algorithm_of(call) == "load_all_reduce");
    return check_operations(world, true);
  });
}

TEST_P(Exposed, MappedBuffersOnSomeRanksOnly) {
  expect_all(options(),
             [](World& world) { return check_operations(world, world.rank() % 2 == 0); });
}

// As when a rank's address space is limited: it maps no heap, and exposes nothing.
TEST_P(Exposed, NoHeap) {
  Ranks::Options without = options();
  without.variables = {{"ISTHMUS_HEAP_GB", "0"}};
  expect_all(without, [](World& world) {
    Buffer probe(world, 5000, true);
    REQUIRE_RANK(!probe.mapped());
    return check_operations(world, true);
  });
}

TEST_P(Exposed, AsynchronousOnBothKindsOfBuffers) {
  expect_all(options(), [](World& world) {
    constexpr std::size_t kCount = 50'000;
    std::vector<Buffer> buffers;
    std::vector<WorkRef> works;
    for (int k = 0; k < 6; ++k) {
      // Mapped on all, on none, and on some.
      buffers.emplace_back(world, kCount, k % 3 == 0 || (k % 3 == 1 && world.rank() == 0));
      buffers.back().fill(world.rank() + k);
    }
    for (Buffer& buffer : buffers) {
      const Call call{.op = OpKind::kAllReduce,
                      .dtype = DType::kFloat32,
                      .input = buffer.data(),
                      .output = buffer.data(),
                      .count = kCount};
      works.push_back(world.communicator().start(call).value());
    }
    for (std::size_t k = 0; k < works.size(); ++k) {
      REQUIRE_OK(works[k]->wait(Deadline()));
      for (std::size_t i = 0; i < kCount; ++i) {
        float sum = 0;
        for (int rank = 0; rank < world.size(); ++rank) {
          sum += value_at(rank + static_cast<int>(k), i);
        }
        REQUIRE_RANK(buffers[k][i] == sum);
      }
    }
    return 0;
  });
}

// The heaps are as large as the machine's memory: a core dump or a fork that took them along would
// take that much.
TEST_P(Exposed, HeapsAreLeftOutOfDumpsAndForks) {
  expect_all(options(), [](World& world) {
    std::ifstream maps("/proc/self/smaps");
    int heaps = 0;
    int left_out = 0;
    bool heap = false;
    for (std::string line; std::getline(maps, line);) {
      if (line.find("isthmus-heap") != std::string::npos) {
        heap = true;
        ++heaps;
      } else if (heap && line.starts_with("VmFlags:")) {
        heap = false;
        left_out += line.find(" dd") != std::string::npos && line.find(" dc") != std::string::npos;
      }
    }
    REQUIRE_RANK(heaps == world.size() && left_out == heaps);
    return 0;
  });
}

// As above, where the program's address space is limited.
TEST_P(Exposed, NoHeapWhereAddressSpaceIsLimited) {
  Ranks::Options limited = options();
  // 8 GiB above what the program has mapped by then: a sanitizer alone maps terabytes.
  limited.before = [](int) {
    std::size_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    const std::size_t bytes =
        pages * static_cast<std::size_t>(::sysconf(_SC_PAGESIZE)) + (std::size_t{8} << 30);
    const rlimit most{.rlim_cur = bytes, .rlim_max = bytes};
    ::setrlimit(RLIMIT_AS, &most);
  };
  expect_all(limited, [](World& world) {
    Buffer probe(world, 5000, true);
    REQUIRE_RANK(!probe.mapped());
    return check_operations(world, true);
  });
}

TEST_P(Exposed, BuffersOutliveTheirWorld) {
  expect_all(options(), [](World& world) {
    static MemoryRegion kept;
    kept = world.allocate(1 << 20).value();
    kept.data()[0] = std::byte{1};
    return 0;
  });
}

// Copies between processes, forced: each operation by itself, since a name fits only one.
TEST_P(Exposed, PulledFromPrivateMemory) {
  for (const char* name :
       {"pull_all_reduce", "pull_all_gather", "pull_reduce_scatter", "pull_all_to_all"}) {
    Ranks::Options forced = options();
    forced.variables = {{"ISTHMUS_ALGO", name}};
    expect_all(forced, [](World& world) { return check_operations(world, false); });
  }
  for (const char* name : {"pull_broadcast", "pull_gather", "pull_scatter"}) {
    Ranks::Options forced = options();
    forced.variables = {{"ISTHMUS_ALGO", name}};
    expect_all(forced, [](World& world) { return check_rooted(world); });
  }
}

// From here on this process is refused copies from others.
void forbid_copies() {
  constexpr auto kCall = static_cast<std::uint32_t>(SYS_process_vm_readv);
  sock_filter program[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, kCall, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog filter{.len = 4, .filter = program};
  ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
  if (::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) != 0) {
    std::perror("seccomp");
    ::_exit(97);
  }
}

int lines_of(const std::string& path) {
  std::ifstream file(path);
  int lines = 0;
  for (std::string line; std::getline(file, line);) {
    std::fprintf(stderr, "log: %s\n", line.c_str());
    lines += line.find("EPERM") == std::string::npos ? 0 : 1;
  }
  return lines;
}

// Case O-20: right data, one line, and who may still copy does.
void expect_refused(const std::function<void(int rank)>& before, int pulling_ranks) {
  const TempFolder folder = TempFolder::create("refused").value();
  const std::string log = folder.path() + "/log";
  Ranks::Options options;
  options.size = 4;
  options.variables = {{"ISTHMUS_LOG_FILE", log}};
  options.before = before;
  expect_all(options, [pulling_ranks](World& world) {
    std::vector<int> members;
    for (int rank = 0; rank < pulling_ranks; ++rank) {
      members.push_back(rank);
    }
    for (const std::size_t count : {std::size_t{1024}, std::size_t{1} << 20}) {
      std::vector<float> in(count);
      std::vector<float> out(4 * count);
      for (std::size_t i = 0; i < count; ++i) {
        in[i] = value_at(world.rank(), i);
      }
      REQUIRE_OK(world.communicator().all_gather(in.data(), out.data(), count, DType::kFloat32));
      for (std::size_t i = 0; i < 4 * count; ++i) {
        REQUIRE_RANK(out[i] == value_at(static_cast<int>(i / count), i % count));
      }
    }
    return 0;
  });
  EXPECT_EQ(lines_of(log), 1);
}

TEST(Refused, CopiesForbiddenToAll) {
  expect_refused([](int) { forbid_copies(); }, 0);
}

TEST(Refused, CopiesForbiddenToOne) {
  expect_refused(
      [](int rank) {
        if (rank == 3) {
          forbid_copies();
        }
      },
      3);
}

INSTANTIATE_TEST_SUITE_P(Ranks, Exposed, ::testing::Values(2, 3, 4),
                         [](const auto& one) { return "Of" + std::to_string(one.param); });

}  // namespace
}  // namespace isthmus
