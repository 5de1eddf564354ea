// Goal: staging that is used often becomes huge pages, which changes no byte for its owner or a
// peer; where there are none nothing else changes. Method: lease and write again and again, compare
// through a second mapping, with huge pages and under a filter that forbids them.

#include "transport/shm/segment.h"

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>

#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/huge_pages.h"

namespace isthmus {
namespace {

constexpr int kRounds = 600;  // more than twice what a huge page takes
constexpr int kSkip = 77;

std::byte value(int round, std::size_t i) {
  return static_cast<std::byte>(i / 64 * 31 + static_cast<std::size_t>(round));
}

// Empty when every round's bytes reached the peer, else what went wrong.
std::string_view use_staging(const Segment::Options& options, std::uint64_t* refused) {
  Result<Segment> own = Segment::create(options);
  if (!own.ok()) {
    return "no segment";
  }
  Result<Fd> copy = own->fd().duplicate();
  if (!copy.ok()) {
    return "no descriptor";
  }
  const Result<Segment> peer = Segment::attach(std::move(*copy), options.rank, own->header().token);
  if (!peer.ok()) {
    return "not attached";
  }
  if (reinterpret_cast<std::uintptr_t>(own->stage()) % kHugePageBytes != 0 ||
      reinterpret_cast<std::uintptr_t>(peer->stage()) % kHugePageBytes != 0) {
    return "not aligned";
  }
  // Beside the leases that come and go: it must survive its page becoming huge.
  const std::optional<StageLease> kept = own->lease(Segment::kChunkBytes, false);
  if (!kept) {
    return "no lease";
  }
  own->stage()[kept->offset + 5] = std::byte{77};
  for (int round = 0; round < kRounds; ++round) {
    const std::optional<StageLease> lease = own->lease(kHugePageBytes, false);
    if (!lease) {
      return "no lease";
    }
    for (std::size_t i = 0; i < lease->bytes; i += 64) {
      own->stage()[lease->offset + i] = value(round, i);
    }
    for (std::size_t i = 0; i < lease->bytes; i += 64) {
      if (peer->stage()[lease->offset + i] != value(round, i)) {
        return "the peer reads other bytes";
      }
    }
    own->release(*lease);
  }
  *refused = own->huge_refused();
  return peer->stage()[kept->offset + 5] == std::byte{77} ? ""
                                                          : "a lease that was kept has changed";
}

class Staging : public ::testing::TestWithParam<bool> {};

TEST_P(Staging, KeepsEveryByteHoweverOftenItIsUsed) {
  std::uint64_t refused = 0;
  Segment::Options options;
  options.stage_bytes = 5 << 20;  // the last huge page is not whole
  options.named = GetParam();
  EXPECT_EQ(use_staging(options, &refused), "");
  EXPECT_LE(refused, 2U);
}

INSTANTIATE_TEST_SUITE_P(Kinds, Staging, ::testing::Bool(),
                         [](const auto& tested) { return tested.param ? "DevShm" : "Memfd"; });

TEST(StagingOfOneRank, AsksForNothing) {
  Segment::Options options;
  options.unshared = true;
  Result<Segment> own = Segment::create(options);
  ASSERT_TRUE(own.ok());
  for (int round = 0; round < kRounds; ++round) {
    const std::optional<StageLease> lease = own->lease(kHugePageBytes, false);
    ASSERT_TRUE(lease.has_value());
    own->release(*lease);
  }
  EXPECT_EQ(own->huge_refused(), 0U);
}

// MADV_COLLAPSE is refused; in a child, for the filter stays.
TEST(StagingWithoutHugePages, IsAsGood) {
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    constexpr std::uint32_t kCollapse = 25;
    std::array<sock_filter, 6> program = {
        sock_filter BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
        sock_filter BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_madvise, 0, 3),
        sock_filter BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, args[2])),
        sock_filter BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, kCollapse, 0, 1),
        sock_filter BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EINVAL),
        sock_filter BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
    const sock_fprog filter = {.len = program.size(), .filter = program.data()};
    if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
        ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) != 0) {
      ::_exit(kSkip);
    }
    std::uint64_t refused = 0;
    const std::string_view wrong = use_staging({}, &refused);
    ::_exit(wrong.empty() ? (refused == 1 ? 0 : 2) : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status)) << status;
  if (WEXITSTATUS(status) == kSkip) {
    GTEST_SKIP() << "no filter of system calls here";
  }
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace
}  // namespace isthmus
